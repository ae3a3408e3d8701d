package contract

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Switch names a misbehaviour. Its value is a percentage of the calls, drawn
// for each, unless it says otherwise; one that is just turned on is on above 0.
type Switch string

// The switches.
const (
	Silent         Switch = "silent"          // on: headers announce nothing and there is no Retry-After
	ResetSkew      Switch = "reset-skew"      // resets are announced so many seconds late; negative: early
	RefusedWith200 Switch = "200-with-error"  // refusals have status 200 and the body of the error
	Forbidden      Switch = "403-not-a-limit" // accepted calls get 403 for want of a permission
	NoRetryAfter   Switch = "no-retry-after"  // refusals are without
	// FloatRetryAfter writes it with three decimals, rounded up.
	FloatRetryAfter Switch = "float-retry-after"
	// LongRetryAfter makes it twice the time to the reset, and at least a second
	// more.
	LongRetryAfter Switch = "retry-after-beyond-reset"
	// RemainingWhenRefused announces that something is left along with a refusal.
	RemainingWhenRefused Switch = "remaining-when-refused"
	VanishingPolicy      Switch = "vanishing-policy" // on: no policy header once something is used up
	FixedWindows         Switch = "fixed-windows"    // on: windows begin with their first call; not calendar days
	SlidingWindows       Switch = "sliding-windows"  // on: windows slide; not calendar days
	NoETag               Switch = "no-etag"          // on: answers have no validator, and none is honoured
	HTML                 Switch = "html"             // accepted calls get an error page with status 200
	// NotReady is on: what is dated yesterday is refused before 02:00 in Korea.
	NotReady      Switch = "not-ready"
	SessionExpiry Switch = "session-expiry" // a session dies after so many calls
	Gzip          Switch = "gzip"           // on: answers are compressed for who accepts it
	// SharedRefusal refuses accepted calls for what others do: Riot's service,
	// Discord's shared scope, Stripe's lock_timeout. It counts as no refusal.
	SharedRefusal Switch = "shared-refusal"
)

// switches has the names a switch's contracts begin with; none means all.
var switches = map[Switch][]string{
	Silent: nil, ResetSkew: nil, RefusedWith200: nil, Forbidden: nil, NoRetryAfter: nil, FloatRetryAfter: nil, LongRetryAfter: nil,
	RemainingWhenRefused: nil, VanishingPolicy: {"ietf"}, FixedWindows: nil, SlidingWindows: nil, NoETag: {"github-rest"}, HTML: nil,
	NotReady: {"nexon"}, SessionExpiry: {"court"}, Gzip: nil, SharedRefusal: {"riot", "discord", "stripe"},
}

// checkSwitches reports switches that don't exist or mean nothing to a contract.
func checkSwitches(given map[Switch]float64, name string) error {
	for s := range given {
		of, known := switches[s]
		if !known {
			return fmt.Errorf("there is no switch %q; there are %q", s, slices.Sorted(maps.Keys(switches)))
		}
		if of != nil && !slices.ContainsFunc(of, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return fmt.Errorf("switch %q means nothing to %s; it is for %s", s, name, strings.Join(of, ", "))
		}
	}
	return nil
}

// hits draws whether a switch hits this call.
func (m *policyMaker) hits(s Switch) bool {
	percent := m.switches[s]
	return percent > 0 && m.rng.Float64()*100 < percent
}

// buildReply makes up the answer to a judged call.
func (u *Upstream) buildReply(c *call, v *decision) reply {
	m := u.maker
	for i := range v.states {
		s := &v.states[i]
		s.reset = s.reset.Add(time.Duration(m.switches[ResetSkew] * float64(time.Second)))
		if v.refusedBy != nil && m.hits(RemainingWhenRefused) {
			s.remaining = max(s.remaining, 1)
		}
	}
	var rep reply
	switch {
	case v.refusedBy != nil:
		rep = u.contract.refuse(c, v)
		m.retryAfter(rep.header, v)
	case m.hits(Forbidden):
		rep = document(http.StatusForbidden, object{"message": "this credential may not read that"})
	case m.hits(HTML):
		rep = text(http.StatusOK, htmlType, htmlPage)
	default:
		rep = u.contract.respond(c, v)
	}
	if u.contract.chargeForReply != nil {
		rep.charges = append(rep.charges, u.contract.chargeForReply(c, rep)...)
	}
	if v.refusedBy != nil && m.hits(RefusedWith200) {
		rep.status = http.StatusOK
	}
	if m.switches[Silent] > 0 {
		rep.header.Del("Retry-After")
	} else if u.contract.setHeaders != nil && !rep.noHeaders && len(v.states) > 0 {
		u.contract.setHeaders(rep.header, v)
	}
	rep.header.Set("Date", c.at.UTC().Format(http.TimeFormat))
	return rep
}

const htmlPage = `<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Error</title></head><body><p>Please try again later.</p></body></html>
`

// retryAfter bends what a contract wrote.
func (m *policyMaker) retryAfter(h http.Header, v *decision) {
	if h.Get("Retry-After") == "" {
		return
	}
	if m.hits(FloatRetryAfter) {
		h.Set("Retry-After", strconv.FormatFloat(fraction(v.untilAvailable()), 'f', 3, 64))
	}
	if m.hits(LongRetryAfter) {
		h.Set("Retry-After", strconv.Itoa(2*seconds(v.refusedBy.reset.Sub(v.at))+1))
	}
	if m.hits(NoRetryAfter) {
		h.Del("Retry-After")
	}
}
