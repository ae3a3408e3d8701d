package contract

import (
	"hash/fnv"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// discord is Discord's API for bots. Its limits are:
//
//	global, per bot      50 calls in any second
//	per route            5 calls in a fixed window of 5 s
//	per IP address       10,000 responses with status 401, 403 or 429 in 10 minutes
//
// Routes that differ only in IDs share a bucket, except for channel, guild and webhook IDs.
// After an IP address exceeds its limit, every call from it is refused. Speed shortens the 10 minutes.
// A refusal by the switch SharedRefusal reports the scope "shared" and does not count towards the limit
// of the IP address.
func discord(m *policyMaker) contract {
	global := m.window(sliding, "global", requests, 50, time.Second)
	route := m.window(fixed, "route", requests, 5, 5*time.Second)
	invalid := m.window(fixed, "invalid", requests, 10_000, 10*time.Minute)
	limited := func(scope string, after time.Duration) reply {
		rep := document(http.StatusTooManyRequests, object{
			"message": "You are being rate limited.", "retry_after": fractionalSeconds(after), "global": scope == "global",
		})
		rep.header.Set("Retry-After", strconv.FormatFloat(fractionalSeconds(after), 'f', -1, 64))
		setHeader(rep.header, "X-RateLimit-Scope", scope)
		if scope == "global" {
			setHeader(rep.header, "X-RateLimit-Global", "true")
		}
		return rep
	}
	return contract{
		charges: func(c *call) []charge {
			charges := []charge{{policy: invalid, scope: clientAddress(c), need: 1}}
			bot := owner(credential(c))
			if bot == "" {
				return charges
			}
			hash, id := discordBucket(c)
			return append(charges, charge{policy: global, scope: bot, cost: 1}, charge{policy: route, scope: bot + " " + hash + " " + id, cost: 1})
		},
		setHeaders: func(h http.Header, v *decision) {
			s := v.state(route)
			if s == nil {
				return
			}
			setHeader(h, "X-RateLimit-Limit", number(s.policy.limit))
			setHeader(h, "X-RateLimit-Remaining", number(s.remaining))
			setHeader(h, "X-RateLimit-Reset", strconv.FormatFloat(fractionalSeconds(s.reset.Sub(time.Unix(0, 0))), 'f', 3, 64))
			setHeader(h, "X-RateLimit-Reset-After", strconv.FormatFloat(fractionalSeconds(s.reset.Sub(v.at)), 'f', 3, 64))
		},
		refuse: func(c *call, v *decision) reply {
			switch v.refusedBy.policy {
			case invalid:
				rep := text(http.StatusTooManyRequests, "text/plain", "this address is banned temporarily\n")
				rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
				rep.noHeaders, rep.noPenalty = true, true // this refusal does not count towards the limit of the IP address
				return rep
			case global:
				return limited("global", v.untilAvailable())
			}
			return withBucket(limited("user", v.untilAvailable()), c)
		},
		respond: func(c *call, v *decision) reply {
			switch {
			case v.state(route) == nil:
				return document(http.StatusUnauthorized, object{"message": "The token is missing.", "code": 0})
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

// discordBucket returns the hash of the method and the route without IDs, and the channel,
// guild or webhook ID that the bucket belongs to.
func discordBucket(c *call) (hash, id string) {
	parts := strings.Split(c.URL.Path, "/")
	for i, part := range parts {
		if _, err := strconv.ParseUint(part, 10, 64); err != nil || i == 0 {
			continue
		}
		if top := parts[i-1]; top == "channels" || top == "guilds" || top == "webhooks" {
			id = part
		}
		parts[i] = "id"
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(c.Method + strings.Join(parts, "/")))
	return strconv.FormatUint(h.Sum64(), 16), id
}
