package contract

import (
	"net/http"
	"strings"
	"time"
)

// stripe is Stripe's API in live mode: by account 100 calls in any second and
// 20 in flight, 25 a second of one endpoint (the method and the first two parts
// of the path), and 1,000 updates of one object in any hour. Nothing is announced
// before it is too late, and then no Retry-After. Speed shortens the hour.
// SharedRefusal is a lock_timeout: 429 without a reason.
func stripe(m *maker) contract {
	reasons := []string{"global-concurrency", "global-rate", "endpoint-rate", "resource-specific"}
	inFlight := m.places(reasons[0], 20)
	global := m.window(sliding, reasons[1], requests, 100, time.Second)
	endpoint := m.window(sliding, reasons[2], requests, 25, time.Second)
	updates := m.window(sliding, reasons[3], requests, 1_000, time.Hour)
	refuse := func(code string) reply {
		return document(http.StatusTooManyRequests, object{"error": object{"type": "invalid_request_error", "code": code, "message": "Too many requests."}})
	}
	return contract{
		demands: func(c *call) []demand {
			key := secret(c)
			if key == "" {
				return nil
			}
			who := owner(key)
			all := []demand{
				{policy: inFlight, scope: who, cost: 1},
				{policy: global, scope: who, cost: 1},
				{policy: endpoint, scope: who + " " + c.Method + " " + segments(c, 2), cost: 1},
			}
			if thing := segments(c, 3); c.Method == http.MethodPost && strings.Count(thing, "/") == 2 {
				all = append(all, demand{policy: updates, scope: who + " " + thing, cost: 1})
			}
			return all
		},
		refuse: func(_ *call, v *verdict) reply {
			rep := refuse("rate_limit")
			rep.header.Set("Stripe-Rate-Limited-Reason", v.refused.policy.name)
			return rep
		},
		answer: func(c *call, v *verdict) reply {
			switch {
			case len(v.standings) == 0:
				return document(http.StatusUnauthorized, object{"error": object{"type": "invalid_request_error", "message": "There is no API key."}})
			case m.on(SharedRefusal):
				return refuse("lock_timeout")
			}
			return document(http.StatusOK, m.record(c))
		},
	}
}
