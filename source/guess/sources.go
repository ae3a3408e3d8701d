package guess

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
	"github.com/freshet/freshet/source/trial"
)

// defaultFreshFor is the setting freshFor if no response declares how long it is fresh.
const defaultFreshFor = 10 * time.Minute

// sources returns the sources of the configuration, one for each scheme and host.
func (r *run) sources(probes []probe) (all []sourceGuess) {
	for _, p := range probes {
		i := slices.IndexFunc(all, func(s sourceGuess) bool { return s.base == p.base })
		if i < 0 {
			i = len(all)
			name := unique(sourceName(p.host), func(name string) bool {
				return slices.ContainsFunc(all, func(s sourceGuess) bool { return s.name == name })
			})
			all = append(all, sourceGuess{name: name, base: p.base, auth: p.auth})
			r.noteAuth(p.address)
		}
		s := &all[i]
		f := r.facet(p, s)
		s.facets = append(s.facets, f)
		r.result.Entities = append(r.result.Entities, s.name+"/"+f.name+"/"+cmp.Or(p.key, "all"))
	}
	for i := range all {
		found, free := limitsOf(all[i].base, probes)
		all[i].policies = policiesOf(r.options.Limits, found, free, r.note)
	}
	return all
}

func (r *run) noteAuth(a address) {
	switch {
	case a.auth.Header+a.auth.Query == "" || r.options.AuthHeader != "":
		if a.auth.Prefix == "Bearer " && !strings.Contains(r.options.AuthHeader, ":") {
			r.note("guess", "auth: the prefix \"Bearer \" before the value of %s; for another one write --auth-header \"Authorization: PREFIX\"", a.auth.SecretEnv)
		}
		return
	case a.auth.Query != "":
		r.note("guess", "auth: the query parameter %s is the credential; its value was sent, and is not in the file", a.auth.Query)
	default:
		r.note("guess", "auth: the user and password of the URL were sent, and are not in the file")
		r.result.Basic = true
	}
	r.result.Env = a.auth.SecretEnv
}

// limitsOf returns the limits that the responses of one host report. `free304` is true if a 304 did
// not reduce the remaining calls.
func limitsOf(base string, probes []probe) (found []announced.Detected, free304 bool) {
	now := time.Now()
	for _, p := range probes {
		if p.base != base || !p.called {
			continue
		}
		first, _ := announced.Detect(p.in.Header, now)
		if p.again != nil {
			second, _ := announced.Detect(p.again.Documents[0].Header, now)
			free304 = free304 || p.again.Class == source.NotModified && len(first) > 0 && len(second) > 0 && first[0].Remaining >= 0 && first[0].Remaining == second[0].Remaining
		}
		for _, f := range first {
			if !slices.ContainsFunc(found, func(other announced.Detected) bool { return other.Rule == f.Rule }) {
				found = append(found, f)
			}
		}
	}
	return found, free304
}

// facet returns the facet for one URL, and adds a note for each guess.
func (r *run) facet(p probe, s *sourceGuess) facetGuess {
	f := facetGuess{path: p.template, freshFor: defaultFreshFor, freshFrom: "CHECK maximum age of the data that readers get"}
	f.name = unique(p.facet, func(name string) bool {
		return slices.ContainsFunc(s.facets, func(f facetGuess) bool { return f.name == name })
	})
	if p.key == "" {
		f.keyPattern, f.keyFrom = "all", "CHECK the path has no id, so the only key is \"all\""
		r.note("guess", "facet %s: no id was found in %s, so it has the one key \"all\"", f.name, p.template)
	} else {
		f.keyPattern, f.keyFrom = p.pattern, "like "+p.key
	}
	switch {
	case len(p.groups) > 0:
		names := "{" + strings.Join(p.groups, "}, {") + "}"
		r.note("guess", "facet %s: the parts of a key fill %s in %s, as in %s", f.name, names, p.template, p.key)
		r.note("check", "facet %s: if one of %s is the same for all keys, write its value into the path, and remove its group from keyPattern", f.name, names)
	case p.key != "":
		r.note("guess", "facet %s: {key} in %s is %s: %s", f.name, p.template, idKind(p.key), p.key)
	}
	if p.dropped {
		r.note("check", "facet %s: the fragment after # was left out", f.name)
	}
	if !p.called {
		return f
	}
	if _, unread := announced.Detect(p.in.Header, time.Now()); len(unread) > 0 {
		r.note("check", "%s: freshet cannot read this form of a limit; write it with --limit", strings.Join(unread, ", "))
	}
	if p.answer.Class != source.OK {
		r.noteFailure(f, p)
		return f
	}
	if p.in.URL != p.in.Planned {
		r.note("check", "facet %s: the host redirects the path, which costs a second call each time; use the path of %s", f.name, p.in.URL)
	}
	r.readBody(&f, p, s.base)
	r.readFreshness(&f, p)
	r.compare(&f, p)
	return f
}

// noteFailure adds a note that explains a response without content.
func (r *run) noteFailure(f facetGuess, p probe) {
	text := trial.Mend(p.in, p.auth, false)
	if p.auth.Header+p.auth.Query == "" && (p.answer.Class == source.AuthRefused || p.in.Status == http.StatusForbidden) {
		text = "the API needs a credential: freshet init URL --auth-header NAME --auth-env VARIABLE --force"
		if kind := p.in.Header.Get("Www-Authenticate"); kind != "" {
			text += "; it requires " + kind
		}
	}
	if errors.Is(p.answer.Err, source.ErrOversized) {
		text = fmt.Sprintf("init reads at most %d MiB; request fewer items, or set maxBody for a larger response", maxBody>>20)
	}
	if p.answer.RetryAfter > 0 {
		text += "; it requests a pause of " + schemas.FormatDuration(p.answer.RetryAfter.Round(time.Second))
	}
	r.note("check", "facet %s: %s: %s", f.name, strings.TrimPrefix(p.answer.Err.Error(), "document "+p.facet+": "), text)
}

// readBody finds the paging and the list of items in the first response.
func (r *run) readBody(f *facetGuess, p probe, base string) {
	body, ok := decodeBody(p.in.Body)
	if !ok {
		return
	}
	items, isList := findList(body)
	link := hasNextLink(p.in.Header)
	cursor, isURL := nextPage(body)
	switch {
	case link && isList:
		f.paging = &source.Paging{Link: true, Items: items.path}
		r.note("guess", "facet %s: pages, by the Link header; at most 10 pages, one call each", f.name)
	case cursor != nil && isList:
		f.paging = cursor
		f.paging.Items = items.path
		r.note("guess", "facet %s: pages, by the member %s; at most 10 pages, one call each", f.name, cursor.Cursor)
		r.note("check", "facet %s: the next page is requested with the parameter %s", f.name, cursor.Param)
	case isURL && isList:
		r.note("check", "facet %s: the body contains the URL of a next page, which freshet does not follow; request more items in one page", f.name)
	}
	if !isList || p.key != "" {
		return
	}
	where := "the body is a list"
	if items.path != "" {
		where = "the member " + items.path + " is a list"
	}
	if id := items.exampleID(); id != "" && !strings.Contains(p.literal, "?") {
		r.note("check", "facet %s: %s of %s; to keep each item, run freshet init %s/%s", f.name, where, trial.Plural(len(items.items), "item"), base+strings.TrimSuffix(p.literal, "/"), id)
	}
}

// hasNextLink reports whether the header Link has the relation next.
func hasNextLink(h http.Header) bool {
	for link := range strings.SplitSeq(strings.ToLower(strings.Join(h.Values("Link"), ",")), ",") {
		_, parameters, _ := strings.Cut(link, ">")
		compact := strings.ReplaceAll(strings.ReplaceAll(parameters, " ", ""), `"`, "")
		if strings.Contains(compact, ";rel=next") {
			return true
		}
	}
	return false
}

// readFreshness sets freshFor from the Cache-Control header of the response.
func (r *run) readFreshness(f *facetGuess, p probe) {
	seconds := map[string]int{}
	for directive := range strings.SplitSeq(strings.ToLower(strings.Join(p.in.Header.Values("Cache-Control"), ",")), ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(directive), "=")
		if n, err := strconv.Atoi(strings.Trim(value, `"`)); err == nil {
			seconds[name] = n
		}
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(seconds))) { // "s-maxage" is read after "max-age" here and replaces it
		if n := seconds[name]; (name == "max-age" || name == "s-maxage") && n > 0 {
			f.freshFor = max(10*time.Second, min(24*time.Hour, time.Duration(min(n, 86400))*time.Second))
			f.freshFrom = "from Cache-Control: " + name + "=" + strconv.Itoa(n)
			return
		}
	}
}

// compare derives the settings conditional and ignore from the second response to the same URL.
func (r *run) compare(f *facetGuess, p probe) {
	has := p.answer.Validator != source.Validator{}
	switch {
	case p.again == nil:
		return
	case p.again.Class == source.NotModified:
		if f.paging == nil {
			f.conditional = true
			r.note("guess", "facet %s: conditional, because the second call with the validator got 304", f.name)
		}
		return
	case p.again.Class == source.Quota:
		r.note("check", "the second call was refused; lower the limit of the quota")
		return
	case p.again.Class != source.OK:
		r.note("check", "the second call got another response: %v", p.again.Err)
		return
	case has:
		r.note("check", "facet %s: the API sends an ETag or Last-Modified, but answered the second call with 200, so conditional is off", f.name)
	}
	changed := source.ChangedPaths(p.answer.Content, p.again.Content)
	if f.paging != nil || len(changed) == 0 {
		return
	}
	for i := range changed {
		changed[i] = f.name + strings.TrimPrefix(changed[i], p.facet)
	}
	long := slices.ContainsFunc(changed, func(path string) bool { return len(path) > 100 })
	if len(changed) > 3 || long || slices.Contains(changed, f.name) {
		r.note("check", "facet %s: %s of the response differed between two calls; see freshet try --twice, and set ignore or select", f.name, trial.Plural(len(changed), "member"))
		return
	}
	f.ignore = changed
	r.note("guess", "facet %s: ignore %s, which differed between two calls", f.name, strings.Join(changed, ", "))
}

// template returns an example configuration. Run uses it if the user gives no URL.
func template(o Options, auth source.Auth) Result {
	if auth.Header == "" {
		auth = source.Auth{Header: "X-Api-Key", SecretEnv: "SHOP_KEY"}
	}
	limits := o.Limits
	if len(limits) == 0 {
		limits = []Limit{{10, time.Second}}
	}
	s := sourceGuess{
		name: "shop", base: "https://api.example.com", auth: auth,
		policies: policiesOf(limits, nil, false, func(string, string, ...any) {}),
		facets: []facetGuess{{
			name: "product", path: "/products/{key}", keyPattern: "[0-9A-Za-z_.-]{1,80}", keyFrom: "a regular expression that a whole key matches",
			freshFor: defaultFreshFor, freshFrom: "maximum age of the data that readers get",
		}},
	}
	for i := range s.policies {
		s.policies[i].from = "the documented limit of the API"
	}
	head := []string{
		"A template, written by freshet init. With a URL, init fills it in: freshet init https://api.example.com/products/42",
		"Next: freshet config check --config " + o.File,
	}
	return Result{File: write(head, []sourceGuess{s})}
}
