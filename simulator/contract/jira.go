package contract

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// jira is Jira Cloud's API. It allows each tenant (host) 65,000 points in an hour of the clock.
// A read costs 1 point plus 1 for each returned object, a write 1 point. It also allows each
// tenant, method and endpoint (the first four path segments) 10 calls in any second.
//
// When the points are exhausted, responses no longer report the policy, and the reported number of
// seconds until the reset is too high by a fifth of the window. Speed shortens the hour.
func jira(m *policyMaker) contract {
	burst := m.window(sliding, "burst", requests, 10, time.Second)
	quota := m.window(aligned, "tenant-app-quota", points, 65_000, time.Hour)
	const quotaReason = "jira-quota-tenant-based"
	return contract{
		charges: func(c *call) []charge {
			return []charge{
				{policy: burst, scope: c.Host + " " + c.Method + " " + pathPrefix(c, 4), cost: 1},
				{policy: quota, scope: c.Host, cost: float64(1 + jiraObjects(c))},
			}
		},
		setHeaders: func(h http.Header, v *decision) {
			b, q := v.state(burst), v.state(quota)
			setHeader(h, "X-Ratelimit-Limit", number(b.policy.limit))
			setHeader(h, "X-Ratelimit-Remaining", number(b.remaining))
			setHeader(h, "X-Ratelimit-Reset", iso(b.reset))
			left, after := q.remaining, q.reset.Sub(v.at)
			if q.exceeded && m.switches[RemainingWhenRefused] == 0 {
				left = 0
			}
			if left < 1 {
				after += q.policy.window / 5
				setHeader(h, "X-Beta-Ratelimit-Reset", iso(q.reset))
			} else {
				setHeader(h, "Beta-Ratelimit-Policy", fmt.Sprintf(`"%s";q=%v;w=%d`, q.policy.name, q.policy.limit, seconds(q.policy.window)))
			}
			setHeader(h, "Beta-Ratelimit", fmt.Sprintf(`"%s";r=%s;t=%d`, q.policy.name, number(left), seconds(after)))
			if left < q.policy.limit/5 {
				setHeader(h, "X-Beta-Ratelimit-Reason", quotaReason)
				if left >= 1 {
					setHeader(h, "X-Beta-Ratelimit-Nearlimit", "true")
				}
			}
		},
		refuse: func(_ *call, v *decision) reply {
			reason := "jira-burst-based"
			if v.refusedBy.policy == quota {
				reason = quotaReason
			}
			rep := document(http.StatusTooManyRequests, object{"errorMessages": []string{"Rate limit exceeded"}})
			setHeader(rep.header, "RateLimit-Reason", reason)
			rep.header.Set("Retry-After", strconv.Itoa(seconds(v.untilAvailable())))
			return rep
		},
		respond: func(c *call, _ *decision) reply {
			body := m.content(c)
			if strings.Contains(c.URL.Path, "/search") {
				list := []object{}
				for n := range jiraObjects(c) {
					list = append(list, object{"id": strconv.Itoa(10_000 + n)})
				}
				body["issues"] = list
			}
			return document(http.StatusOK, body)
		},
	}
}

// jiraObjects returns the number of objects that a call reads: the maximum number of results for
// a search, 1 for any other read, and 0 for a write.
func jiraObjects(c *call) int {
	switch {
	case c.Method != http.MethodGet:
		return 0
	case strings.Contains(c.URL.Path, "/search"):
		return min(100, parseAtLeast(c.URL.Query().Get("maxResults"), 0, 50))
	}
	return 1
}

// iso formats a time, rounded up to a second, and omits seconds that are zero.
func iso(t time.Time) string {
	t = t.Add(time.Second - 1).UTC().Truncate(time.Second)
	if t.Second() == 0 {
		return t.Format("2006-01-02T15:04Z")
	}
	return t.Format(time.RFC3339)
}
