package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ietf is an API that implements the IETF draft of the RateLimit header fields. It allows each
// account 100 calls in 60 s and 10,000 in 86,400 s, in fixed windows. A call without a credential
// counts for its IP address. Speed shortens both windows.
func ietf(m *policyMaker) contract {
	policies := []*policy{
		m.window(fixed, "burst", requests, 100, time.Minute),
		m.window(fixed, "daily", requests, 10_000, 24*time.Hour),
	}
	return contract{
		charges: func(c *call) []charge {
			scope := owner(credential(c))
			if scope == "" {
				scope = clientAddress(c)
			}
			var charges []charge
			for _, p := range policies {
				charges = append(charges, charge{policy: p, scope: scope, cost: 1})
			}
			return charges
		},
		setHeaders: func(h http.Header, v *decision) {
			var limits, remaining []string
			omitPolicy := false
			for _, s := range v.states {
				limits = append(limits, fmt.Sprintf(`"%s";q=%v;w=%d`, s.policy.name, s.policy.limit, seconds(s.policy.window)))
				remaining = append(remaining, fmt.Sprintf(`"%s";r=%s;t=%d`, s.policy.name, number(s.remaining), seconds(s.reset.Sub(v.at))))
				omitPolicy = omitPolicy || s.remaining < 1 && m.switches[VanishingPolicy] > 0
			}
			if !omitPolicy {
				setHeader(h, "RateLimit-Policy", strings.Join(limits, ","))
			}
			setHeader(h, "RateLimit", strings.Join(remaining, ","))
		},
		refuse: func(_ *call, v *decision) reply {
			var exceeded []string
			for _, s := range v.states {
				if s.exceeded {
					exceeded = append(exceeded, s.policy.name)
				}
			}
			rep := document(http.StatusTooManyRequests, object{
				"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
				"title": "A quota is exhausted.", "violated-policies": exceeded,
			})
			rep.header.Set("Content-Type", "application/problem+json")
			rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
			return rep
		},
		respond: func(c *call, _ *decision) reply { return document(http.StatusOK, m.content(c)) },
	}
}
