package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ietf is an API that follows the draft of the RateLimit header fields: by
// credential, or address, 100 calls in 60 s and 10,000 in 86,400 s that begin
// with the first. Speed shortens both.
func ietf(m *maker) contract {
	policies := []*policy{
		m.window(fixed, "burst", requests, 100, time.Minute),
		m.window(fixed, "daily", requests, 10_000, 24*time.Hour),
	}
	return contract{
		demands: func(c *call) []demand {
			who := owner(secret(c))
			if who == "" {
				who = peer(c)
			}
			var all []demand
			for _, p := range policies {
				all = append(all, demand{policy: p, scope: who, cost: 1})
			}
			return all
		},
		announce: func(h http.Header, v *verdict) {
			var stated, left []string
			vanished := false
			for _, s := range v.standings {
				stated = append(stated, fmt.Sprintf(`"%s";q=%v;w=%d`, s.policy.name, s.policy.limit, seconds(s.policy.window)))
				left = append(left, fmt.Sprintf(`"%s";r=%s;t=%d`, s.policy.name, number(s.left), seconds(s.reset.Sub(v.at))))
				vanished = vanished || s.left < 1 && m.switches[VanishingPolicy] > 0
			}
			if !vanished {
				put(h, "RateLimit-Policy", strings.Join(stated, ","))
			}
			put(h, "RateLimit", strings.Join(left, ","))
		},
		refuse: func(_ *call, v *verdict) reply {
			var violated []string
			for _, s := range v.standings {
				if s.refuses {
					violated = append(violated, s.policy.name)
				}
			}
			rep := document(http.StatusTooManyRequests, object{
				"type":  "https://iana.org/assignments/http-problem-types#quota-exceeded",
				"title": "There is nothing left of a quota.", "violated-policies": violated,
			})
			rep.header.Set("Content-Type", "application/problem+json")
			rep.header.Set("Retry-After", strconv.Itoa(seconds(v.wait())))
			return rep
		},
		answer: func(c *call, _ *verdict) reply { return document(http.StatusOK, m.record(c)) },
	}
}
