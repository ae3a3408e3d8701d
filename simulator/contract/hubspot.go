package contract

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// hubspot is HubSpot's API for a private app. It allows each portal (the owner of the token)
// 190 calls in any 10 s and 650,000 in a UTC day. Speed shortens both windows.
func hubspot(m *policyMaker) contract {
	rolling := m.window(sliding, "TEN_SECONDLY_ROLLING", requests, 190, 10*time.Second)
	daily := m.day("DAILY", 650_000, 0)
	return contract{
		charges: func(c *call) []charge {
			portal := owner(credential(c))
			if portal == "" {
				return nil
			}
			return []charge{{policy: rolling, scope: portal, cost: 1}, {policy: daily, scope: portal, cost: 1}}
		},
		setHeaders: func(h http.Header, v *decision) {
			r, d := v.state(rolling), v.state(daily)
			setHeader(h, "X-HubSpot-RateLimit-Max", number(r.policy.limit))
			setHeader(h, "X-HubSpot-RateLimit-Remaining", number(r.remaining))
			setHeader(h, "X-HubSpot-RateLimit-Interval-Milliseconds", strconv.FormatInt(r.policy.window.Milliseconds(), 10))
			setHeader(h, "X-HubSpot-RateLimit-Daily", number(d.policy.limit))
			setHeader(h, "X-HubSpot-RateLimit-Daily-Remaining", number(d.remaining))
		},
		refuse: func(_ *call, v *decision) reply {
			name := v.refusedBy.policy.name
			return document(http.StatusTooManyRequests, object{
				"status": "error", "message": "You have reached your " + strings.ToLower(name) + " limit.",
				"error": "RATE_LIMIT", "errorType": name, "policyName": name,
			})
		},
		respond: func(c *call, v *decision) reply {
			if len(v.states) == 0 {
				return document(http.StatusUnauthorized, object{"status": "error", "category": "INVALID_AUTHENTICATION", "message": "The token is missing."})
			}
			return document(http.StatusOK, m.content(c))
		},
	}
}
