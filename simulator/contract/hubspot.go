package contract

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// hubspot is HubSpot's API for a private app: by portal (the owner of the token)
// 190 calls in any 10 s and 650,000 in a day of UTC. Speed shortens both.
func hubspot(m *maker) contract {
	rolling := m.window(sliding, "TEN_SECONDLY_ROLLING", requests, 190, 10*time.Second)
	daily := m.day("DAILY", 650_000, 0)
	return contract{
		demands: func(c *call) []demand {
			portal := owner(secret(c))
			if portal == "" {
				return nil
			}
			return []demand{{policy: rolling, scope: portal, cost: 1}, {policy: daily, scope: portal, cost: 1}}
		},
		announce: func(h http.Header, v *verdict) {
			r, d := v.of(rolling), v.of(daily)
			put(h, "X-HubSpot-RateLimit-Max", number(r.policy.limit))
			put(h, "X-HubSpot-RateLimit-Remaining", number(r.left))
			put(h, "X-HubSpot-RateLimit-Interval-Milliseconds", strconv.FormatInt(r.policy.window.Milliseconds(), 10))
			put(h, "X-HubSpot-RateLimit-Daily", number(d.policy.limit))
			put(h, "X-HubSpot-RateLimit-Daily-Remaining", number(d.left))
		},
		refuse: func(_ *call, v *verdict) reply {
			name := v.refused.policy.name
			return document(http.StatusTooManyRequests, object{
				"status": "error", "message": "You have reached your " + strings.ToLower(name) + " limit.",
				"error": "RATE_LIMIT", "errorType": name, "policyName": name,
			})
		},
		answer: func(c *call, v *verdict) reply {
			if len(v.standings) == 0 {
				return document(http.StatusUnauthorized, object{"status": "error", "category": "INVALID_AUTHENTICATION", "message": "There is no token."})
			}
			return document(http.StatusOK, m.record(c))
		},
	}
}
