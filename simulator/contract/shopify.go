package contract

import (
	"fmt"
	"math"
	"net/http"
)

func shop(c *call) string { return owner(c.Header.Get("X-Shopify-Access-Token")) + " " + c.Host }

// shopifyREST is Shopify's REST Admin API: by app and store a bucket of 40 calls
// that leaks 2 a second. Speed multiplies the leak.
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

// shopifyGraphQL is Shopify's GraphQL Admin API: by app and store a bucket of
// 1,000 points, 50 a second restored. What a query could cost is held, 1 and a
// point for each node that it asks for; nodes turn out to be fewer, and the
// difference is given back when the answer is written. Speed multiplies what is
// restored.
func shopifyGraphQL(m *policyMaker) contract {
	cost := m.bucket("cost", points, 1_000, 50)
	requested := func(c *call) float64 {
		_, nodes := readQuery(c.body).sizes()
		return float64(1 + nodes)
	}
	// status is the bucket as it will be without what is given back.
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
			asked := requested(c)
			actual := 1 + math.Floor((asked-1)*0.45)
			body := object{"data": object{"node": m.content(c)}}
			if m.switches[Silent] == 0 {
				body["extensions"] = status(asked, actual, v.state(cost).remaining+asked-actual)
			}
			rep := document(http.StatusOK, body)
			rep.charges = []charge{{policy: cost, scope: shop(c), cost: actual - asked}}
			return rep
		},
	}
}
