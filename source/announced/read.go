package announced

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// maxReset is the longest plausible time until a reset; no quota window is longer than a month.
const maxReset = 31 * 24 * time.Hour

// maxResource bounds the length of a resource name in bytes.
const maxResource = 128

// response is one HTTP response, as passed to Rules.Read.
type response struct {
	header http.Header
	body   []byte
	now    time.Time
}

// Read returns one Notice for each rule that finds a value, in the order of the rules. Invalid and
// implausible values are ignored. `body` returns the decompressed body. Read calls it at most once,
// and only if ReadsBody returns true. `now` is the time when the response arrived.
func (r Rules) Read(header http.Header, body func() []byte, now time.Time) []Notice {
	a := response{header: header, now: now}
	if r.readsBody {
		a.body = body()
	}
	var notices []Notice
	for i := range r.rules {
		if n, found := r.rules[i].read(&a); found {
			notices = append(notices, n)
		}
	}
	return notices
}

func (r *compiledRule) read(a *response) (Notice, bool) {
	n := Notice{
		Policy:    r.Policy,
		Resource:  a.resource(r.resource),
		Limit:     parseCount(a.value(r.limit), math.Floor),
		Remaining: parseCount(a.value(r.remaining), math.Floor),
		Cost:      parseCount(a.value(r.cost), math.Ceil),
	}
	n.Reset, n.Slack = a.reset(a.value(r.reset))
	if r.used != (location{}) && n.Remaining == Unknown {
		n.Remaining = remainingOf(n.Limit, parseCount(a.value(r.used), math.Ceil))
	}
	if r.usage != (location{}) {
		used, limit, _ := strings.Cut(a.value(r.usage), "/")
		n.fillFromUsage(parseCount(limit, math.Floor), parseCount(used, math.Ceil))
	}
	if r.field != (location{}) {
		r.readField(a, &n)
	}
	if r.list != (location{}) {
		n.fillFromUsage(parseCount(listEntry(a.listValue(r.list), r.Window), math.Floor), parseCount(listEntry(a.listValue(r.counts), r.Window), math.Ceil))
	}
	found := n.Limit != Unknown || n.Remaining != Unknown || n.Cost != Unknown || n.Reset >= 0 || n.Resource != ""
	return n, found
}

// fillFromUsage sets Limit to `limit`, and Remaining to limit minus used. A field of n that already
// has a value is not changed.
func (n *Notice) fillFromUsage(limit, used int64) {
	if n.Remaining == Unknown {
		n.Remaining = remainingOf(limit, used)
	}
	if n.Limit == Unknown {
		n.Limit = limit
	}
}

// readField reads the rule's structured field (RFC 9651) and sets the fields of n that are still
// Unknown.
func (r *compiledRule) readField(a *response, n *Notice) {
	// parseItems returns no items for a list that is too long or ends within a string. Such a list
	// could lack the item with the fewest remaining calls (r).
	list, _ := parseItems(a.listValue(r.field))
	name, remaining, found := "", int64(Unknown), false
	var reset, slack time.Duration
	for _, item := range list {
		if item.name == "" || r.Item != "" && item.name != r.Item {
			continue
		}
		left := parseCount(item.r, math.Floor)
		t, s := a.reset(item.t)
		fewer := left != Unknown && (remaining == Unknown || left < remaining)
		if !found || fewer || left == remaining && t > reset {
			name, remaining, reset, slack, found = item.name, left, t, s, true
		}
	}
	if !found {
		return
	}
	if n.Remaining == Unknown {
		n.Remaining = remaining
	}
	if n.Reset < 0 {
		n.Reset, n.Slack = reset, slack
	}
	if n.Limit != Unknown || r.policyField == (location{}) {
		return
	}
	policies, _ := parseItems(a.listValue(r.policyField))
	for _, item := range policies {
		if item.name == name {
			n.Limit = parseCount(item.q, math.Floor)
			return
		}
	}
}

// value returns the value at a location, or "". If a header occurs several times, the first
// value counts.
func (a *response) value(p location) string {
	if p.header != "" {
		if values := a.header[p.header]; len(values) > 0 {
			return values[0]
		}
		return ""
	}
	if p.path == "" {
		return ""
	}
	switch v := gjson.GetBytes(a.body, p.path); {
	case v.Type == gjson.String:
		return v.Str
	case v.Type == gjson.Number && strings.ContainsAny(v.Raw, "eE"):
		return strconv.FormatFloat(v.Num, 'f', -1, 64)
	case v.Type == gjson.Number:
		return v.Raw
	}
	return ""
}

// listValue returns a list at a location. Several lines of a header form one list.
func (a *response) listValue(p location) string {
	if values := a.header[p.header]; len(values) > 1 {
		return strings.Join(values, ",")
	}
	return a.value(p)
}

// reset parses the time until a window ends; 0 if the window has ended, Unknown if text is not a
// plausible time. `slack` is the maximum rounding error of the result.
func (a *response) reset(text string) (reset, slack time.Duration) {
	seconds, slack, ok := secondsUntil(text, a.header, a.now)
	if !ok || math.Abs(seconds) > maxReset.Seconds() {
		return Unknown, 0
	}
	return time.Duration(math.Round(max(0, seconds)*1e6)) * time.Microsecond, slack
}

// resource returns the name of a budget, or "" if it is too long or contains spaces. The name
// becomes part of a Redis key.
func (a *response) resource(p location) string {
	name := strings.TrimSpace(a.value(p))
	if len(name) > maxResource || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return name
}
