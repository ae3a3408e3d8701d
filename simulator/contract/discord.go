package contract

import (
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// discord is Discord's API for bots: 50 calls in any second; for each route 5 in
// 5 s that begin with the first call, where routes that differ only in ids share
// a bucket, once for every channel, guild or webhook; and 10,000 answers 401, 403
// and 429 from an address in 10 minutes, after which it is refused everything.
// Speed shortens the 10 minutes. SharedRefusal has the scope shared and is not
// one of the 10,000.
func discord(m *policyMaker) contract {
	global := m.window(sliding, "global", requests, 50, time.Second)
	route := m.window(fixed, "route", requests, 5, 5*time.Second)
	invalid := m.window(fixed, "invalid", requests, 10_000, 10*time.Minute)
	limited := func(scope string, after time.Duration) reply {
		rep := document(http.StatusTooManyRequests, object{
			"message": "You are being rate limited.", "retry_after": fraction(after), "global": scope == "global",
		})
		rep.header.Set("Retry-After", strconv.FormatFloat(fraction(after), 'f', -1, 64))
		setHeader(rep.header, "X-RateLimit-Scope", scope)
		if scope == "global" {
			setHeader(rep.header, "X-RateLimit-Global", "true")
		}
		return rep
	}
	return contract{
		charges: func(c *call) []charge {
			all := []charge{{policy: invalid, scope: clientAddress(c), need: 1}}
			bot := owner(credential(c))
			if bot == "" {
				return all
			}
			hash, of := discordBucket(c)
			return append(all, charge{policy: global, scope: bot, cost: 1}, charge{policy: route, scope: bot + " " + hash + " " + of, cost: 1})
		},
		setHeaders: func(h http.Header, v *decision) {
			s := v.state(route)
			if s == nil {
				return
			}
			setHeader(h, "X-RateLimit-Limit", number(s.policy.limit))
			setHeader(h, "X-RateLimit-Remaining", number(s.remaining))
			setHeader(h, "X-RateLimit-Reset", strconv.FormatFloat(fraction(s.reset.Sub(time.Unix(0, 0))), 'f', 3, 64))
			setHeader(h, "X-RateLimit-Reset-After", strconv.FormatFloat(fraction(s.reset.Sub(v.at)), 'f', 3, 64))
		},
		refuse: func(c *call, v *decision) reply {
			switch v.refusedBy.policy {
			case invalid:
				rep := text(http.StatusTooManyRequests, "text/plain", "this address is banned for a while\n")
				rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
				rep.noHeaders, rep.noPenalty = true, true // it is banned already
				return rep
			case global:
				return limited("global", v.untilAvailable())
			}
			return withBucket(limited("user", v.untilAvailable()), c)
		},
		respond: func(c *call, v *decision) reply {
			switch {
			case v.state(route) == nil:
				return document(http.StatusUnauthorized, object{"message": "There is no token.", "code": 0})
			case m.hits(SharedRefusal):
				rep := withBucket(limited("shared", time.Second), c)
				rep.noPenalty = true
				return rep
			}
			return withBucket(document(http.StatusOK, m.content(c)), c)
		},
		chargeForReply: func(c *call, rep reply) []charge {
			switch rep.status {
			case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
				if !rep.noPenalty {
					return []charge{{policy: invalid, scope: clientAddress(c), cost: 1}}
				}
			}
			return nil
		},
	}
}

func withBucket(rep reply, c *call) reply {
	hash, _ := discordBucket(c)
	setHeader(rep.header, "X-RateLimit-Bucket", hash)
	return rep
}

// discordBucket is the hash of method and route without ids, and the id that the
// bucket is of.
func discordBucket(c *call) (hash, of string) {
	parts := strings.Split(c.URL.Path, "/")
	for i, part := range parts {
		if _, err := strconv.ParseUint(part, 10, 64); err != nil || i == 0 {
			continue
		}
		if top := parts[i-1]; top == "channels" || top == "guilds" || top == "webhooks" {
			of = part
		}
		parts[i] = "id"
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Method + strings.Join(parts, "/")))
	return strconv.FormatUint(h.Sum64(), 16), of
}
