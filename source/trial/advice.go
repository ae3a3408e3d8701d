package trial

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
)

// advise returns the changes of the configuration that the report suggests, the most urgent first.
func advise(a Answer, name string, config source.Config, facet source.Facet, report Report, limits []Limit) (all []string) {
	add := func(format string, args ...any) {
		if text := cut(Printable(fmt.Sprintf(format, args...)), 600); !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	at := "sources." + name
	for _, in := range a.Documents {
		if facet.Raw != nil && in.Class == source.BadContent {
			add("the body does not satisfy the setting raw of the facet: check the path, and wellFormed, must and mustNot")
			continue
		}
		if text := Mend(in, config.Auth, len(config.Credentials) > 0); text != "" && in.Class != source.OK {
			add("%s", text)
		}
		adviseOnLimits(in, at, config, limits, add)
		if in.Class != source.OK {
			continue
		}
		d := facet.Documents[in.Document]
		plainGET := in.Method == http.MethodGet && d.Paging == nil
		if plainGET && strings.Contains(strings.ToLower(strings.Join(in.Header.Values("Link"), ",")), "next") && strings.Contains(in.Header.Get("Link"), "<") {
			add("the response links to a next page, and only the first page is stored: add paging: {link: true} to document %s", in.Document)
		}
		if plainGET && len(facet.Documents) == 1 && !facet.Conditional && a.Validator != (source.Validator{}) {
			add("the response has an ETag or Last-Modified: conditional: true saves the body of unchanged content")
		}
	}
	for _, list := range []struct {
		name  string
		paths []Path
	}{{"select", report.Select}, {"ignore", report.Ignore}} {
		for _, p := range list.paths {
			if p.Values == 0 {
				add("%s: %q matches nothing in this response", list.name, p.Path)
			}
		}
	}
	if report.Changed != nil && len(report.Changed.Hashed) > 0 && facet.Raw == nil {
		ignore := slices.Concat(facet.Ignore, report.Changed.Hashed)
		add("if these members change without a change of the entity: ignore: [%s]", strings.Join(ignore, ", "))
	}
	return all
}

// Mend returns an advice after a response without content: the setting or the value that the user
// should check. It returns "" if it has no advice.
func Mend(in source.Inspection, auth source.Auth, several bool) string {
	kind := in.Header.Get("Content-Type")
	switch {
	case in.Status >= 300 && in.Status < 400 && in.Status != http.StatusNotModified:
		return fmt.Sprintf("the upstream redirects to %s: if that is the address of the API, write it in baseURL and path", cmp.Or(in.Header.Get("Location"), "an unknown address"))
	case in.Status == http.StatusUnauthorized || in.Class == source.AuthRefused || in.Status == http.StatusForbidden && in.Class == source.Permanent:
		return mendAuth(in, auth, several)
	case in.Class == source.Quota:
		return "the upstream refused the call because of its limit: wait, and lower the limit in quota.policies"
	case in.Class == source.NotFound:
		return "the upstream has no such entity: if other keys get the same response, check baseURL and path"
	case strings.Contains(kind, "html") && in.Class != source.Transient:
		return "the response is HTML, not JSON: check baseURL and path; they may be the address of a website or a login page"
	case in.Class == source.BadContent && in.Status == http.StatusOK && len(in.Body) == 0:
		return "the response has no body: check the path"
	case in.Class == source.BadContent && in.Err != nil && strings.Contains(in.Err.Error(), source.ErrOversized.Error()):
		return "the response is larger than maxBody: request fewer items, or increase maxBody and workers.maxBodyMemory"
	case in.Class == source.BadContent && in.Status == http.StatusOK && strings.Contains(in.Err.Error(), "page"):
		return "check paging.items, the path of the list in the response"
	case in.Class == source.BadContent:
		return "freshet stores only complete JSON with status 200: check the path"
	case in.Class == source.Permanent:
		return "the upstream rejected the request: check the path, its query, and headers"
	case in.Class == source.Transient && in.Status == 0:
		return "check that baseURL is reachable from this machine, and timeout"
	case in.Class == source.Transient:
		return "the upstream has a temporary fault: try again later"
	}
	return ""
}

func mendAuth(in source.Inspection, auth source.Auth, several bool) string {
	challenge := ""
	if kind := in.Header.Get("Www-Authenticate"); kind != "" {
		challenge = "; it requires " + kind
	}
	place := "the header " + auth.Header
	if auth.Query != "" {
		place = "the query parameter " + auth.Query
	}
	value := cmp.Or(auth.SecretEnv, auth.SecretFile, "the credential")
	if auth.Header == "" && auth.Query == "" && !several {
		return "the upstream refused the call, and no credential is configured: add auth: {header: …, secretEnv: …}" + challenge
	}
	if auth.Prefix != "" {
		place += fmt.Sprintf(" with the prefix %q", auth.Prefix)
	}
	return fmt.Sprintf("the upstream refused the credential: check the value of %s, which is sent in %s%s", value, place, challenge)
}

// adviseOnLimits adds advice about reported limits that are lower than the configured limits, and
// about reported limits that no rule reads.
func adviseOnLimits(in source.Inspection, at string, config source.Config, limits []Limit, add func(format string, args ...any)) {
	for _, n := range in.Notices {
		for _, l := range limits {
			if l.Policy == n.Policy && n.Limit > 0 && int64(l.Calls) > n.Limit {
				add("the response reports a limit of %d, and policy %s has %d: lower %s.quota.policies", n.Limit, l.Policy, l.Calls, at)
			}
		}
	}
	if in.Class != source.OK && in.Class != source.NotModified && in.Class != source.Quota {
		return
	}
	found, unread := announced.Detect(in.Header, time.Now())
	for _, f := range found {
		if readsSame(config.Announced, f.Rule) || f.Limit <= 0 {
			continue
		}
		slowest, rate := Limit{}, 0.0
		for _, l := range limits {
			if l.Window > 0 && (rate == 0 || float64(l.Calls)/l.Window.Seconds() < rate) {
				slowest, rate = l, float64(l.Calls)/l.Window.Seconds()
			}
		}
		if f.Window > 0 && rate > 1.001*float64(f.Limit)/f.Window.Seconds() {
			add("the response reports %d calls in %s, and policy %s allows %d in %s: lower %s.quota.policies", f.Limit, schemas.FormatDuration(f.Window), slowest.Policy, slowest.Calls, schemas.FormatDuration(slowest.Window), at)
		}
		f.Rule.Policy = slowest.Policy
		add("no rule reads the reported limit: add %s to %s.announced, and reported: true to the policy", f.Rule, at)
	}
	if len(unread) > 0 && len(found) == 0 {
		add("no setting of announced can read %s: write the limit in %s.quota.policies", strings.Join(unread, ", "), at)
	}
}

// readsSame reports whether one of the rules reads a header that the rule `found` reads too.
func readsSame(rules []announced.Rule, found announced.Rule) bool {
	return slices.ContainsFunc(rules, func(r announced.Rule) bool {
		for _, pair := range [][2]string{{r.Limit, found.Limit}, {r.Remaining, found.Remaining}, {r.Usage, found.Usage}, {r.Field, found.Field}, {r.List, found.List}} {
			if pair[1] != "" && http.CanonicalHeaderKey(pair[0]) == http.CanonicalHeaderKey(pair[1]) {
				return true
			}
		}
		return false
	})
}
