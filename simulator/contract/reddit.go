package contract

import (
	"net/http"
	"regexp"
	"strconv"
	"time"
)

var genericAgent = regexp.MustCompile(`(?i)^$|^(go-http-client|python|java|curl|wget|mozilla|okhttp|axios|node)`)

// reddit is Reddit's API for an OAuth client. It allows 1,000 calls in a fixed window of 600 s
// and refuses generic User-Agents. Speed shortens the window.
func reddit(m *policyMaker) contract {
	period := m.window(fixed, "period", requests, 1_000, 10*time.Minute)
	genericAgentPolicy := m.window(fixed, "user-agent", requests, 0, 10*time.Minute) // a limit of 0 refuses every call with a generic User-Agent
	return contract{
		charges: func(c *call) []charge {
			scope := owner(credential(c))
			charges := []charge{{policy: period, scope: scope, cost: 1}}
			if genericAgent.MatchString(c.UserAgent()) {
				charges = append(charges, charge{policy: genericAgentPolicy, scope: scope, cost: 1})
			}
			return charges
		},
		setHeaders: func(h http.Header, v *decision) {
			s := v.state(period)
			setHeader(h, "X-Ratelimit-Used", number(s.used()))
			setHeader(h, "X-Ratelimit-Remaining", strconv.FormatFloat(s.remaining, 'f', 1, 64))
			setHeader(h, "X-Ratelimit-Reset", strconv.Itoa(seconds(s.reset.Sub(v.at))))
		},
		refuse: func(*call, *decision) reply {
			return document(http.StatusTooManyRequests, object{"message": "Too Many Requests", "error": 429})
		},
		respond: func(c *call, _ *decision) reply { return document(http.StatusOK, m.content(c)) },
	}
}
