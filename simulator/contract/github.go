package contract

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// githubSecondary are the limits that GitHub shares between REST and GraphQL and
// says nothing of in headers: 100 calls in flight, and points a minute.
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

// isLimitOf reports whether a refusal is one of these.
func (g githubSecondary) isLimitOf(v *decision) bool {
	return v.refusedBy.policy == g.inFlight || v.refusedBy.policy == g.perMinute
}

// refuse asks for a minute at least, accelerated like the window.
func (g githubSecondary) refuse(v *decision) reply {
	rep := document(http.StatusForbidden, object{
		"message":           "You have exceeded a secondary rate limit.",
		"documentation_url": githubDocs + "#about-secondary-rate-limits",
	})
	rep.header.Set("Retry-After", strconv.Itoa(seconds(max(v.untilAvailable(), g.maker.accelerated(time.Minute)))))
	return rep
}

const githubDocs = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"

// githubHeaders are the same for each resource.
func githubHeaders(h http.Header, resource string, s *accountState) {
	setHeader(h, "x-ratelimit-limit", number(s.policy.limit))
	setHeader(h, "x-ratelimit-remaining", number(s.remaining))
	setHeader(h, "x-ratelimit-used", number(s.policy.limit-s.remaining))
	setHeader(h, "x-ratelimit-reset", epoch(s.reset))
	setHeader(h, "x-ratelimit-resource", resource)
}

// githubREST is GitHub's REST API: by account 5,000 calls an hour of the
// resource core and 30 a minute of search, in windows that begin with their
// first call; 100 in flight; 900 points in any minute, of which a write costs 5.
// An answer 304 costs nothing of the first two. Speed shortens the hour and both
// minutes. GET /rate_limit costs points alone.
func githubREST(m *policyMaker) contract {
	core := m.window(fixed, "core", requests, 5_000, time.Hour)
	search := m.window(fixed, "search", requests, 30, time.Minute)
	secondary := newGithubSecondary(m, 900)
	unchanged := func(c *call) bool {
		return m.switches[NoETag] == 0 && c.Method == http.MethodGet && c.Header.Get("If-None-Match") == m.etag(c)
	}
	primary := func(v *decision) (string, *accountState) {
		if s := v.state(search); s != nil {
			return "search", s
		}
		return "core", v.state(core)
	}
	return contract{
		charges: func(c *call) []charge {
			who := owner(credential(c))
			if who == "" {
				return nil
			}
			cost := 1.0
			if c.Method != http.MethodGet && c.Method != http.MethodHead && c.Method != http.MethodOptions {
				cost = 5
			}
			first := charge{policy: core, scope: who, cost: 1}
			if strings.HasPrefix(c.URL.Path, "/search/") {
				first.policy = search
			}
			if unchanged(c) || c.URL.Path == "/rate_limit" {
				first.cost, first.need = 0, 1
			}
			if c.URL.Path == "/rate_limit" {
				first.need = 0
			}
			return append(secondary.charges(who, cost), first)
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
			if strings.HasSuffix(c.URL.Path, "/issues") {
				rep = githubIssues(c)
			}
			if m.switches[NoETag] == 0 {
				setHeader(rep.header, "ETag", m.etag(c))
			}
			if unchanged(c) {
				rep.status, rep.body = http.StatusNotModified, nil
			}
			return rep
		},
	}
}

// issues is how many every repository has.
const issues = 95

// githubIssues is a page of issues. The links to the others name the repository
// by its number, as the real ones do.
func githubIssues(c *call) reply {
	q := c.URL.Query()
	page, size := parseAtLeast(q.Get("page"), 1, 1), min(100, parseAtLeast(q.Get("per_page"), 1, 30))
	list := []object{}
	for n := (page-1)*size + 1; n <= min(page*size, issues); n++ {
		list = append(list, object{"number": n, "title": fmt.Sprintf("issue %d", n)})
	}
	rep := document(http.StatusOK, list)
	last := (issues + size - 1) / size
	var links []string
	link := func(to int, rel string) {
		q.Set("page", strconv.Itoa(to))
		links = append(links, fmt.Sprintf(`<%s%s?%s>; rel="%s"`, origin(c), githubByNumber(c.URL), q.Encode(), rel))
	}
	if page > 1 {
		link(page-1, "prev")
	}
	if page < last {
		link(page+1, "next")
		link(last, "last")
	}
	if page > 1 {
		link(1, "first")
	}
	if len(links) > 0 {
		setHeader(rep.header, "link", strings.Join(links, ", "))
	}
	return rep
}

// githubByNumber is /repositories/{id}/issues for /repos/{owner}/{name}/issues.
func githubByNumber(u *url.URL) string {
	parts := strings.Split(u.Path, "/")
	if len(parts) != 5 || parts[1] != "repos" {
		return u.Path
	}
	id := 0
	for _, letter := range parts[2] + "/" + parts[3] {
		id = (id*31 + int(letter)) % 9_000_000
	}
	return fmt.Sprintf("/repositories/%d/issues", 1_000_000+id)
}

// origin is scheme and host of the address that was called.
func origin(c *call) string {
	if c.TLS != nil {
		return "https://" + c.Host
	}
	return "http://" + c.Host
}

// parseAtLeast reads a number; what is none, or is below the least, is the usual one.
func parseAtLeast(text string, least, usual int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		return usual
	}
	return n
}

// githubGraphQL is POST /graphql: by account 5,000 points in an hour that begins
// with its first call. A query costs a hundredth of the requests that its
// connections would take at their full sizes, and at least 1. Over it the answer
// is 200 with an error. 100 in flight and 2,000 secondary points in any minute,
// of which a mutation costs 5. Speed shortens hour and minute.
func githubGraphQL(m *policyMaker) contract {
	hourly := m.window(fixed, "graphql", points, 5_000, time.Hour)
	secondary := newGithubSecondary(m, 2_000)
	return contract{
		charges: func(c *call) []charge {
			who := owner(credential(c))
			if who == "" || c.Method != http.MethodPost {
				return nil
			}
			g := readQuery(c.body)
			minute := 1.0
			if strings.HasPrefix(strings.TrimSpace(g.Query), "mutation") {
				minute = 5
			}
			return append(secondary.charges(who, minute), charge{policy: hourly, scope: who, cost: githubCost(g)})
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
				rep := document(http.StatusUnauthorized, object{"message": "This needs POST and a token."})
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
