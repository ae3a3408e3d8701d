package contract

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// githubSecondary contains the limits that REST and GraphQL share and that no header reports:
// 100 calls in flight, and points per minute.
type githubSecondary struct {
	inFlight, perMinute *policy
	maker               *policyMaker
}

func newGithubSecondary(m *policyMaker, perMinute float64) githubSecondary {
	return githubSecondary{
		inFlight:  m.concurrency("concurrent", 100),
		perMinute: m.window(sliding, "secondary", points, perMinute, time.Minute),
		maker:     m,
	}
}

func (g githubSecondary) charges(scope string, cost float64) []charge {
	return []charge{{policy: g.inFlight, scope: scope, cost: 1}, {policy: g.perMinute, scope: scope, cost: cost}}
}

// isLimitOf reports whether a secondary limit refused the call.
func (g githubSecondary) isLimitOf(v *decision) bool {
	return v.refusedBy.policy == g.inFlight || v.refusedBy.policy == g.perMinute
}

// refuse returns the refusal by a secondary limit. Its Retry-After is at least one minute of the
// real API, divided by Speed.
func (g githubSecondary) refuse(v *decision) reply {
	rep := document(http.StatusForbidden, object{
		"message":           "You have exceeded a secondary rate limit.",
		"documentation_url": githubDocs + "#about-secondary-rate-limits",
	})
	rep.header.Set("Retry-After", strconv.Itoa(seconds(max(v.untilAvailable(), g.maker.accelerated(time.Minute)))))
	return rep
}

const githubDocs = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"

// githubHeaders writes the rate-limit headers of one resource.
func githubHeaders(h http.Header, resource string, s *accountState) {
	setHeader(h, "x-ratelimit-limit", number(s.policy.limit))
	setHeader(h, "x-ratelimit-remaining", number(s.remaining))
	setHeader(h, "x-ratelimit-used", number(s.policy.limit-s.remaining))
	setHeader(h, "x-ratelimit-reset", epoch(s.reset))
	setHeader(h, "x-ratelimit-resource", resource)
}

// githubREST is GitHub's REST API. It allows each account 5,000 calls an hour of the resource
// "core" and 30 a minute of the resource "search", in fixed windows. Secondary limits are 100 calls
// in flight and 900 points in any minute; a write costs 5 points. A 304 and GET /rate_limit cost
// only points. Speed shortens the hour and the minutes.
func githubREST(m *policyMaker) contract {
	core := m.window(fixed, "core", requests, 5_000, time.Hour)
	search := m.window(fixed, "search", requests, 30, time.Minute)
	secondary := newGithubSecondary(m, 900)
	lists := &githubLists{maker: m}
	etag := func(c *call) string {
		if lists.kindOf(c.URL) != "" {
			return lists.etag(c)
		}
		return m.etag(c)
	}
	notModified := func(c *call) bool {
		return m.switches[NoETag] == 0 && c.Method == http.MethodGet && c.Header.Get("If-None-Match") == etag(c)
	}
	primary := func(v *decision) (string, *accountState) {
		if s := v.state(search); s != nil {
			return "search", s
		}
		return "core", v.state(core)
	}
	return contract{
		charges: func(c *call) []charge {
			account := owner(credential(c))
			if account == "" {
				return nil
			}
			cost := 1.0
			if c.Method != http.MethodGet && c.Method != http.MethodHead && c.Method != http.MethodOptions {
				cost = 5
			}
			main := charge{policy: core, scope: account, cost: 1}
			if strings.HasPrefix(c.URL.Path, "/search/") {
				main.policy = search
			}
			if notModified(c) || c.URL.Path == "/rate_limit" {
				main.cost, main.need = 0, 1
			}
			if c.URL.Path == "/rate_limit" {
				main.need = 0
			}
			return append(secondary.charges(account, cost), main)
		},
		setHeaders: func(h http.Header, v *decision) {
			resource, s := primary(v)
			githubHeaders(h, resource, s)
		},
		refuse: func(_ *call, v *decision) reply {
			if secondary.isLimitOf(v) {
				return secondary.refuse(v)
			}
			status := http.StatusForbidden
			if m.rng.IntN(2) == 0 {
				status = http.StatusTooManyRequests
			}
			return document(status, object{"message": "API rate limit exceeded", "documentation_url": githubDocs})
		},
		respond: func(c *call, v *decision) reply {
			switch {
			case len(v.states) == 0:
				rep := document(http.StatusUnauthorized, object{"message": "Requires authentication"})
				rep.noHeaders = true
				return rep
			case c.URL.Path == "/rate_limit":
				s := v.state(core)
				return document(http.StatusOK, object{"resources": object{"core": object{
					"limit": s.policy.limit, "used": s.used(), "remaining": s.remaining, "reset": s.reset.Add(time.Second - 1).Unix(),
				}}})
			}
			rep := document(http.StatusOK, m.content(c))
			if lists.kindOf(c.URL) != "" {
				list, links := lists.page(c)
				if rep = document(http.StatusOK, list); links != "" {
					setHeader(rep.header, "link", links)
				}
			}
			if m.switches[NoETag] == 0 {
				setHeader(rep.header, "ETag", etag(c))
			}
			if notModified(c) {
				rep.status, rep.body = http.StatusNotModified, nil
			}
			return rep
		},
	}
}

// githubByNumber returns the URL's path with the repository's ID in place of its owner and name:
// /repos/{owner}/{name}/issues becomes /repositories/{id}/issues.
func githubByNumber(u *url.URL) string {
	parts := strings.Split(u.Path, "/")
	if len(parts) != 5 || parts[1] != "repos" {
		return u.Path
	}
	id := 0
	for _, letter := range parts[2] + "/" + parts[3] {
		id = (id*31 + int(letter)) % 9_000_000
	}
	return fmt.Sprintf("/repositories/%d/%s", 1_000_000+id, parts[4])
}

// origin returns the scheme and host of the request.
func origin(c *call) string {
	if c.TLS != nil {
		return "https://" + c.Host
	}
	return "http://" + c.Host
}

// parseAtLeast parses a number. If the text is invalid or the number is less than minimum, it
// returns fallback.
func parseAtLeast(text string, minimum, fallback int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < minimum {
		return fallback
	}
	return n
}

// githubGraphQL is GitHub's POST /graphql. It allows each account 5,000 points in a fixed window
// of an hour. The cost of a query depends on its connections (paged lists): it is a hundredth of
// the number of requests that all connections need at their maximum size, but at least 1 point. A
// refused query has status 200 and an error in the body. Secondary limits are 100 calls in flight and
// 2,000 points in any minute; a mutation costs 5 points. Speed shortens the hour and the minute.
func githubGraphQL(m *policyMaker) contract {
	hourly := m.window(fixed, "graphql", points, 5_000, time.Hour)
	secondary := newGithubSecondary(m, 2_000)
	return contract{
		charges: func(c *call) []charge {
			account := owner(credential(c))
			if account == "" || c.Method != http.MethodPost {
				return nil
			}
			g := readQuery(c.body)
			minute := 1.0
			if strings.HasPrefix(strings.TrimSpace(g.Query), "mutation") {
				minute = 5
			}
			return append(secondary.charges(account, minute), charge{policy: hourly, scope: account, cost: githubCost(g)})
		},
		setHeaders: func(h http.Header, v *decision) { githubHeaders(h, "graphql", v.state(hourly)) },
		refuse: func(_ *call, v *decision) reply {
			if secondary.isLimitOf(v) {
				return secondary.refuse(v)
			}
			if m.switches[RemainingWhenRefused] == 0 {
				v.state(hourly).remaining = 0
			}
			return document(http.StatusOK, object{"errors": []object{{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}}})
		},
		respond: func(c *call, v *decision) reply {
			if len(v.states) == 0 {
				rep := document(http.StatusUnauthorized, object{"message": "POST and a token are required."})
				rep.noHeaders = true
				return rep
			}
			g, s := readQuery(c.body), v.state(hourly)
			data := object{"node": m.content(c)}
			if strings.Contains(g.Query, "rateLimit") {
				data["rateLimit"] = object{
					"limit": s.policy.limit, "cost": githubCost(g), "remaining": s.remaining, "used": s.used(),
					"resetAt": s.reset.Add(time.Second - 1).UTC().Format(time.RFC3339),
				}
			}
			return document(http.StatusOK, object{"data": data})
		},
	}
}

func githubCost(g query) float64 {
	calls, _ := g.sizes()
	return float64(max(1, (calls+50)/100))
}
