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
func discord(m *maker) contract {
	global := m.window(sliding, "global", requests, 50, time.Second)
	route := m.window(fixed, "route", requests, 5, 5*time.Second)
	invalid := m.window(fixed, "invalid", requests, 10_000, 10*time.Minute)
	limited := func(scope string, after time.Duration) reply {
		rep := document(http.StatusTooManyRequests, object{
			"message": "You are being rate limited.", "retry_after": fraction(after), "global": scope == "global",
		})
		rep.header.Set("Retry-After", strconv.FormatFloat(fraction(after), 'f', -1, 64))
		put(rep.header, "X-RateLimit-Scope", scope)
		if scope == "global" {
			put(rep.header, "X-RateLimit-Global", "true")
		}
		return rep
	}
	return contract{
		demands: func(c *call) []demand {
			all := []demand{{policy: invalid, scope: peer(c), need: 1}}
			bot := owner(secret(c))
			if bot == "" {
				return all
			}
			hash, of := discordBucket(c)
			return append(all, demand{policy: global, scope: bot, cost: 1}, demand{policy: route, scope: bot + " " + hash + " " + of, cost: 1})
		},
		announce: func(h http.Header, v *verdict) {
			s := v.of(route)
			if s == nil {
				return
			}
			put(h, "X-RateLimit-Limit", number(s.policy.limit))
			put(h, "X-RateLimit-Remaining", number(s.left))
			put(h, "X-RateLimit-Reset", strconv.FormatFloat(fraction(s.reset.Sub(time.Unix(0, 0))), 'f', 3, 64))
			put(h, "X-RateLimit-Reset-After", strconv.FormatFloat(fraction(s.reset.Sub(v.at)), 'f', 3, 64))
		},
		refuse: func(c *call, v *verdict) reply {
			switch v.refused.policy {
			case invalid:
				rep := text(http.StatusTooManyRequests, "text/plain", "this address is banned for a while\n")
				rep.header.Set("Retry-After", strconv.Itoa(seconds(v.wait())))
				rep.mute, rep.free = true, true // it is banned already
				return rep
			case global:
				return limited("global", v.wait())
			}
			return withBucket(limited("user", v.wait()), c)
		},
		answer: func(c *call, v *verdict) reply {
			switch {
			case v.of(route) == nil:
				return document(http.StatusUnauthorized, object{"message": "There is no token.", "code": 0})
			case m.on(SharedRefusal):
				rep := withBucket(limited("shared", time.Second), c)
				rep.free = true
				return rep
			}
			return withBucket(document(http.StatusOK, m.record(c)), c)
		},
		penalise: func(c *call, rep reply) []demand {
			switch rep.status {
			case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
				if !rep.free {
					return []demand{{policy: invalid, scope: peer(c), cost: 1}}
				}
			}
			return nil
		},
	}
}

func withBucket(rep reply, c *call) reply {
	hash, _ := discordBucket(c)
	put(rep.header, "X-RateLimit-Bucket", hash)
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
