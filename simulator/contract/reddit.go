package contract

import (
	"net/http"
	"regexp"
	"strconv"
	"time"
)

var genericAgent = regexp.MustCompile(`(?i)^$|^(go-http-client|python|java|curl|wget|mozilla|okhttp|axios|node)`)

// reddit is Reddit's API for an OAuth client: 1,000 calls in 600 s that begin
// with the first, and a User-Agent of one's own with every call. Speed shortens
// the 600 s.
func reddit(m *maker) contract {
	period := m.window(fixed, "period", requests, 1_000, 10*time.Minute)
	agent := m.window(fixed, "user-agent", requests, 0, 10*time.Minute) // for those that have none
	return contract{
		demands: func(c *call) []demand {
			who := owner(secret(c))
			all := []demand{{policy: period, scope: who, cost: 1}}
			if genericAgent.MatchString(c.UserAgent()) {
				all = append(all, demand{policy: agent, scope: who, cost: 1})
			}
			return all
		},
		announce: func(h http.Header, v *verdict) {
			s := v.of(period)
			put(h, "X-Ratelimit-Used", number(s.used()))
			put(h, "X-Ratelimit-Remaining", strconv.FormatFloat(s.left, 'f', 1, 64))
			put(h, "X-Ratelimit-Reset", strconv.Itoa(seconds(s.reset.Sub(v.at))))
		},
		refuse: func(*call, *verdict) reply {
			return document(http.StatusTooManyRequests, object{"message": "Too Many Requests", "error": 429})
		},
		answer: func(c *call, _ *verdict) reply { return document(http.StatusOK, m.record(c)) },
	}
}
