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

// Switch is a deviation from the documented API. Its value is the percentage of calls that are
// affected, or a number that the comment of the switch describes. A switch marked "on" is enabled by
// any value above 0.
type Switch string

// The switches, which turn faults of the simulated upstream on.
const (
	Silent         Switch = "silent"          // on: no rate-limit headers and no Retry-After
	ResetSkew      Switch = "reset-skew"      // number of seconds by which reported resets are late; negative: early
	RefusedWith200 Switch = "200-with-error"  // refusals have status 200 and an error in the body
	Forbidden      Switch = "403-not-a-limit" // accepted calls get 403 because of a missing permission
	NoRetryAfter   Switch = "no-retry-after"  // refusals have no Retry-After
	// FloatRetryAfter writes Retry-After with three decimals, rounded up.
	FloatRetryAfter Switch = "float-retry-after"
	// LongRetryAfter sets Retry-After to twice the time to the reset, and adds one second.
	LongRetryAfter Switch = "retry-after-beyond-reset"
	// RemainingWhenRefused reports at least one remaining unit with a refusal.
	RemainingWhenRefused Switch = "remaining-when-refused"
	VanishingPolicy      Switch = "vanishing-policy" // on: no policy header when a policy is exhausted
	FixedWindows         Switch = "fixed-windows"    // on: windows begin with their first call, except calendar days
	SlidingWindows       Switch = "sliding-windows"  // on: windows slide, except calendar days
	NoETag               Switch = "no-etag"          // on: responses have no ETag, and If-None-Match is ignored
	HTML                 Switch = "html"             // accepted calls get a page of HTML with status 200
	// NotReady (on): yesterday's data is not available before 02:00 in Korea.
	NotReady      Switch = "not-ready"
	SessionExpiry Switch = "session-expiry" // number of calls after which a session expires
	Gzip          Switch = "gzip"           // on: responses are compressed if the client accepts gzip
	// SharedRefusal refuses accepted calls because of other users: Riot's service limit,
	// Discord's shared scope, Stripe's lock_timeout. Stats do not count it as a refusal.
	SharedRefusal Switch = "shared-refusal"
)

// switches maps a switch to the name prefixes of the contracts that support it. The value nil
// means that all contracts support the switch.
var switches = map[Switch][]string{
	Silent: nil, ResetSkew: nil, RefusedWith200: nil, Forbidden: nil, NoRetryAfter: nil, FloatRetryAfter: nil, LongRetryAfter: nil,
	RemainingWhenRefused: nil, VanishingPolicy: {"ietf"}, FixedWindows: nil, SlidingWindows: nil, NoETag: {"github-rest"}, HTML: nil,
	NotReady: {"nexon"}, SessionExpiry: {"court"}, Gzip: nil, SharedRefusal: {"riot", "discord", "stripe"},
}

// checkSwitches returns an error for a switch that is unknown or not supported by a contract.
func checkSwitches(given map[Switch]float64, name string) error {
	for s := range given {
		of, known := switches[s]
		if !known {
			return fmt.Errorf("unknown switch %q; known switches are %q", s, slices.Sorted(maps.Keys(switches)))
		}
		if of != nil && !slices.ContainsFunc(of, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return fmt.Errorf("switch %q is not supported by %s, only by %s", s, name, strings.Join(of, ", "))
		}
	}
	return nil
}

// hits decides at random whether a switch affects a call, with the switch's percentage.
func (m *policyMaker) hits(s Switch) bool {
	percent := m.switches[s]
	return percent > 0 && m.rng.Float64()*100 < percent
}

// buildReply returns the response to a call after the decision.
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
		rep = document(http.StatusForbidden, object{"message": "the credential has no permission for this resource"})
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

// retryAfter changes or removes the Retry-After header of a refusal if a switch such as
// NoRetryAfter affects the call.
func (m *policyMaker) retryAfter(h http.Header, v *decision) {
	if h.Get("Retry-After") == "" {
		return
	}
	if m.hits(FloatRetryAfter) {
		h.Set("Retry-After", strconv.FormatFloat(fractionalSeconds(v.untilAvailable()), 'f', 3, 64))
	}
	if m.hits(LongRetryAfter) {
		h.Set("Retry-After", strconv.Itoa(2*seconds(v.refusedBy.reset.Sub(v.at))+1))
	}
	if m.hits(NoRetryAfter) {
		h.Del("Retry-After")
	}
}
