package guess

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

// policy is one quota policy that is written to the configuration file.
type policy struct {
	name     string
	limit    int64
	window   time.Duration
	restore  float64 // rate at which a leaky bucket is restored, in calls per second; 0 means no leaky bucket
	reported bool
	resource bool
	free304  bool
	rule     announced.Rule
	from     string // comment in the written file: where the limit comes from
	check    bool   // the policy is a guess that the user must check
}

// minReportedWindow is the shortest window of a policy whose state is read from responses. With a
// shorter window, a late response cannot be assigned to its window (docs/quotas.md).
const minReportedWindow = 30 * time.Second

// maxPolicies bounds the policies of one source.
const maxPolicies = 4

// Limit is a limit that the user states.
type Limit struct {
	Calls  int64
	Window time.Duration
}

// ParseLimit parses the text form of a Limit: 10/s, 600/m, 5000/h, 20000/d or 100/2m.
func ParseLimit(text string) (Limit, error) {
	number, unit, _ := strings.Cut(text, "/")
	calls, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	window := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour}[strings.TrimSpace(unit)]
	if window == 0 {
		window, _ = time.ParseDuration(strings.TrimSpace(unit))
	}
	l := Limit{calls, window}
	switch {
	case err != nil || window <= 0:
		return Limit{}, fmt.Errorf("%q must be a number of calls and a window, as in 10/s, 600/m, 5000/h, 20000/d or 100/2m", text)
	case window < 100*time.Millisecond || window > time.Hour && window != 24*time.Hour:
		return Limit{}, fmt.Errorf("%q: the window must be 24h, or between 100ms and 1h", text)
	case calls < 1 || !l.paceable():
		return Limit{}, fmt.Errorf("%q: the number must be at least 1, and at most 50,000 calls a second", text)
	}
	return l, nil
}

// paceable reports whether the limit is low enough for the limiter: at most one call in 20 µs.
func (l Limit) paceable() bool { return l.Calls <= int64(l.Window/(20*time.Microsecond)) }

// policiesOf returns the policies of a source: the limits that the user stated, and the limits that
// responses report. If there are none, it returns a limit of one call a second.
func policiesOf(stated []Limit, found []announced.Detected, free304 bool, note func(kind, format string, args ...any)) (all []policy) {
	add := func(p policy) {
		p.name = unique(p.name, func(name string) bool {
			return slices.ContainsFunc(all, func(other policy) bool { return other.name == name })
		})
		all = append(all, p)
	}
	for _, l := range stated {
		if i := slices.IndexFunc(all, func(p policy) bool { return p.window == l.Window }); i >= 0 {
			all[i].limit = min(all[i].limit, l.Calls)
			continue
		}
		add(policy{name: windowName(l.Window), limit: l.Calls, window: l.Window, from: "from --limit"})
	}
	for _, f := range found {
		p, usable := policyOf(f, free304)
		headers := strings.Join(f.Headers, ", ")
		if !usable {
			note("check", "the limit in %s was not used; write it by hand (docs/quotas.md)", headers)
			continue
		}
		if i := slices.IndexFunc(all, func(other policy) bool {
			return other.window == p.window && !other.scoped() && !p.scoped() || other.rule == p.rule && p.rule != (announced.Rule{})
		}); i >= 0 {
			if all[i].limit > p.limit {
				note("check", "--limit has %d calls in %s, but the responses report %d; the lower one was written", all[i].limit, schemas.FormatDuration(p.window), p.limit)
				all[i].limit = p.limit
			}
			continue
		}
		if len(all) == maxPolicies {
			note("check", "the limit in %s was left out: a source of init has at most %d policies", headers, maxPolicies)
			continue
		}
		for _, l := range all {
			if l.from == "from --limit" && float64(l.limit)/l.window.Seconds() > 1.001*float64(p.limit)/max(1, p.window.Seconds()) && p.window > 0 {
				note("check", "--limit allows %d calls in %s, but the responses report %d in %s; both were written, and the stricter one holds", l.limit, schemas.FormatDuration(l.window), p.limit, schemas.FormatDuration(p.window))
			}
		}
		add(p)
		note("guess", "quota %s: %s, from %s", p.name, p.text(), headers)
		if p.check {
			note("check", "policy %s: %s", p.name, strings.TrimPrefix(p.from, "CHECK "))
		}
	}
	if len(all) == 0 {
		add(policy{name: "second", limit: 1, window: time.Second, from: "no response reports a limit; write the documented one", check: true})
		note("check", "no response reports a limit, so 1 call a second was written; use the API's documented limit: --limit 10/s")
	}
	plain := func(day bool) bool {
		return slices.ContainsFunc(all, func(p policy) bool { return !p.scoped() && (p.window == 24*time.Hour) == day })
	}
	if plain(true) && !plain(false) {
		add(policy{name: "second", limit: 1, window: time.Second, from: "CHECK a rate besides the limit of a day", check: true})
		note("check", "a limit of a day needs a rate too, so 1 call a second was written; use --limit 10/s,20000/d")
	}
	return all
}

// scoped reports whether the policy is not a plain window of the source: it is a reported limit, has the
// scope resource, or is a leaky bucket.
func (p policy) scoped() bool { return p.reported || p.resource || p.restore > 0 }

// policyOf returns the policy for a detected limit.
func policyOf(f announced.Detected, free304 bool) (p policy, usable bool) {
	if strings.Contains(f.Label, "token") {
		return policy{}, false // a limit of tokens is left out: how many tokens a call costs differs from call to call
	}
	p = policy{limit: f.Limit, window: f.Window, rule: f.Rule, resource: f.Rule.Resource != "", from: "from " + headerNames(f)}
	p.name = cleanName(f.Label)
	if p.limit <= 0 {
		p.limit, p.check = max(1, f.Remaining), true
	}
	if p.limit > 1e9 {
		return policy{}, false
	}
	readable := f.Remaining >= 0
	switch {
	case f.Bucket:
		p.restore, p.reported, p.window, p.check = max(0.1, float64(p.limit)/20), true, 0, true
		p.from = "CHECK restore is assumed: the calls that the bucket regains a second"
	case p.window == 0:
		p.window, p.check = time.Minute, true
		p.from = "CHECK the window is assumed: the headers do not contain it"
	case f.Estimated:
		p.check = true
		p.from = fmt.Sprintf("CHECK the window is estimated: the reset was %s away", schemas.FormatDuration(f.Reset.Round(time.Second)))
	}
	if !f.Bucket {
		p.reported = readable && p.window >= minReportedWindow
	}
	if !p.reported {
		p.rule, p.resource = announced.Rule{}, false
		if p.window > time.Hour && p.window != 24*time.Hour {
			p.limit, p.window = max(1, int64(float64(p.limit)*24/p.window.Hours())), 24*time.Hour
		}
	}
	p.free304 = free304 && p.reported && p.restore == 0
	p.name = cmp.Or(p.name, windowName(p.window))
	if f.Bucket && f.Label == "" {
		p.name = "bucket"
	}
	if p.window > 0 && (p.window < 100*time.Millisecond || !p.scoped() && !(Limit{p.limit, p.window}).paceable() || p.limit > int64(p.window/time.Microsecond)) {
		return policy{}, false // the window is too short or the limit too high for the limiter to enforce
	}
	return p, true
}

func headerNames(f announced.Detected) string {
	var names []string
	for _, h := range f.Headers {
		name, _, _ := strings.Cut(h, ":")
		names = append(names, name)
	}
	return strings.Join(names[:min(len(names), 3)], ", ")
}

// text describes the policy for a note.
func (p policy) text() string {
	switch {
	case p.restore > 0:
		return fmt.Sprintf("%d calls at once", p.limit)
	case p.window == 24*time.Hour && !p.scoped():
		return fmt.Sprintf("%d calls a day", p.limit)
	}
	return fmt.Sprintf("%d calls in %s", p.limit, schemas.FormatDuration(p.window))
}

// yaml returns the policy as it is written in the configuration.
func (p policy) yaml() string {
	fields := []string{"name: " + p.name, "limit: " + strconv.FormatInt(p.limit, 10)}
	switch {
	case p.restore > 0:
		fields = append(fields, "restore: "+strconv.FormatFloat(p.restore, 'f', -1, 64)+"/s")
	case p.window == 24*time.Hour && !p.scoped():
		fields = append(fields, "window: day", "timeZone: UTC")
	default:
		fields = append(fields, "window: "+schemas.FormatDuration(p.window))
	}
	if p.resource {
		fields = append(fields, `scope: "{resource}"`)
	}
	if p.reported {
		fields = append(fields, "reported: true")
	}
	if p.free304 {
		fields = append(fields, "freeStatuses: [304]")
	}
	reserve := p.limit / 5
	if p.window > time.Minute {
		reserve = p.limit / 10
	}
	if reserve > 0 {
		fields = append(fields, "highReserve: "+strconv.FormatInt(reserve, 10))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}
