package contract

import (
	"net/http"
	"strings"
	"time"
)

// stripe is Stripe's API in live mode. Its limits are:
//
//	per account                                              100 calls in any second, 20 in flight
//	per account, method and the first two path segments      25 calls in any second
//	per object                                               1,000 updates in any hour
//
// Only refusals report a limit, and they have no Retry-After. Speed shortens the hour. With the switch
// SharedRefusal, calls are refused with the error lock_timeout: a 429 that names no limit.
func stripe(m *policyMaker) contract {
	reasons := []string{"global-concurrency", "global-rate", "endpoint-rate", "resource-specific"}
	inFlight := m.concurrency(reasons[0], 20)
	global := m.window(sliding, reasons[1], requests, 100, time.Second)
	endpoint := m.window(sliding, reasons[2], requests, 25, time.Second)
	updates := m.window(sliding, reasons[3], requests, 1_000, time.Hour)
	refuse := func(code string) reply {
		return document(http.StatusTooManyRequests, object{"error": object{"type": "invalid_request_error", "code": code, "message": "Too many requests."}})
	}
	return contract{
		charges: func(c *call) []charge {
			key := credential(c)
			if key == "" {
				return nil
			}
			account := owner(key)
			charges := []charge{
				{policy: inFlight, scope: account, cost: 1},
				{policy: global, scope: account, cost: 1},
				{policy: endpoint, scope: account + " " + c.Method + " " + pathPrefix(c, 2), cost: 1},
			}
			if object := pathPrefix(c, 3); c.Method == http.MethodPost && strings.Count(object, "/") == 2 {
				charges = append(charges, charge{policy: updates, scope: account + " " + object, cost: 1})
			}
			return charges
		},
		refuse: func(_ *call, v *decision) reply {
			rep := refuse("rate_limit")
			rep.header.Set("Stripe-Rate-Limited-Reason", v.refusedBy.policy.name)
			return rep
		},
		respond: func(c *call, v *decision) reply {
			switch {
			case len(v.states) == 0:
				return document(http.StatusUnauthorized, object{"error": object{"type": "invalid_request_error", "message": "The API key is missing."}})
			case m.hits(SharedRefusal):
				return refuse("lock_timeout")
			}
			return document(http.StatusOK, m.content(c))
		},
	}
}
