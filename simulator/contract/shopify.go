package contract

import (
	"fmt"
	"math"
	"net/http"
)

func shop(c *call) string { return owner(c.Header.Get("X-Shopify-Access-Token")) + " " + c.Host }

// shopifyREST is Shopify's REST Admin API. For each app and store it has a leaky bucket of 40 calls,
// which regains 2 calls a second. Speed multiplies this rate.
func shopifyREST(m *policyMaker) contract {
	calls := m.bucket("calls", requests, 40, 2)
	return contract{
		charges: func(c *call) []charge { return []charge{{policy: calls, scope: shop(c), cost: 1}} },
		setHeaders: func(h http.Header, v *decision) {
			s := v.state(calls)
			setHeader(h, "X-Shopify-Shop-Api-Call-Limit", fmt.Sprintf("%v/%v", math.Ceil(s.used()-tolerance), s.policy.limit))
		},
		refuse: func(*call, *decision) reply {
			rep := document(http.StatusTooManyRequests, object{"errors": "Too many calls for this store and app."})
			rep.header.Set("Retry-After", "2.0")
			return rep
		},
		respond: func(c *call, _ *decision) reply { return document(http.StatusOK, m.content(c)) },
	}
}

// shopifyGraphQL is Shopify's GraphQL Admin API. For each app and store it has a bucket of 1,000
// points, which regains 50 points a second. A query takes 1 point plus 1 for each node that it could
// return. The unused points are refunded when the response is written. Speed multiplies the restore
// rate.
func shopifyGraphQL(m *policyMaker) contract {
	cost := m.bucket("cost", points, 1_000, 50)
	requested := func(c *call) float64 {
		_, nodes := readQuery(c.body).sizes()
		return float64(1 + nodes)
	}
	// status returns the part of the response that describes the bucket. The parameter "left" is
	// the number of available points, including the refund for this call.
	status := func(requested float64, actual any, left float64) object {
		return object{"cost": object{
			"requestedQueryCost": requested, "actualQueryCost": actual,
			"throttleStatus": object{"maximumAvailable": cost.limit, "currentlyAvailable": math.Floor(left), "restoreRate": cost.restore()},
		}}
	}
	return contract{
		charges: func(c *call) []charge { return []charge{{policy: cost, scope: shop(c), cost: requested(c)}} },
		refuse: func(c *call, v *decision) reply {
			return document(http.StatusOK, object{
				"errors":     []object{{"message": "Throttled", "extensions": object{"code": "THROTTLED"}}},
				"extensions": status(requested(c), nil, v.state(cost).remaining),
			})
		},
		respond: func(c *call, v *decision) reply {
			requestedCost := requested(c)
			actual := 1 + math.Floor((requestedCost-1)*0.45)
			body := object{"data": object{"node": m.content(c)}}
			if m.switches[Silent] == 0 {
				body["extensions"] = status(requestedCost, actual, v.state(cost).remaining+requestedCost-actual)
			}
			rep := document(http.StatusOK, body)
			rep.charges = []charge{{policy: cost, scope: shop(c), cost: actual - requestedCost}}
			return rep
		},
	}
}
