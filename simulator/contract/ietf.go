package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ietf is an API that implements the IETF draft of the RateLimit header fields. It allows each
// credential, or address, 100 calls in 60 s and 10,000 in 86,400 s, in fixed windows. Speed
// shortens both.
func ietf(m *policyMaker) contract {
	policies := []*policy{
		m.window(fixed, "burst", requests, 100, time.Minute),
		m.window(fixed, "daily", requests, 10_000, 24*time.Hour),
	}
	return contract{
		charges: func(c *call) []charge {
			who := owner(credential(c))
			if who == "" {
				who = clientAddress(c)
			}
			var all []charge
			for _, p := range policies {
				all = append(all, charge{policy: p, scope: who, cost: 1})
			}
			return all
		},
		setHeaders: func(h http.Header, v *decision) {
			var stated, left []string
			vanished := false
			for _, s := range v.states {
				stated = append(stated, fmt.Sprintf(`"%s";q=%v;w=%d`, s.policy.name, s.policy.limit, seconds(s.policy.window)))
				left = append(left, fmt.Sprintf(`"%s";r=%s;t=%d`, s.policy.name, number(s.remaining), seconds(s.reset.Sub(v.at))))
				vanished = vanished || s.remaining < 1 && m.switches[VanishingPolicy] > 0
			}
			if !vanished {
				setHeader(h, "RateLimit-Policy", strings.Join(stated, ","))
			}
			setHeader(h, "RateLimit", strings.Join(left, ","))
		},
		refuse: func(_ *call, v *decision) reply {
			var violated []string
			for _, s := range v.states {
				if s.exceeded {
					violated = append(violated, s.policy.name)
				}
			}
			rep := document(http.StatusTooManyRequests, object{
				"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
				"title": "There is nothing left of a quota.", "violated-policies": violated,
			})
			rep.header.Set("Content-Type", "application/problem+json")
			rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
			return rep
		},
		respond: func(c *call, _ *decision) reply { return document(http.StatusOK, m.content(c)) },
	}
}
