package contract

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// example is a typical call of a contract, and the policy whose limit repeated calls reach first.
type example struct {
	name       string
	call       func() *http.Request
	atOnce     int           // number of calls that are accepted at one moment
	resetAfter time.Duration // time after which atOnce calls are accepted again
	policy     string        // name of the policy that must refuse the call after the first atOnce calls
	status     int
	body       []string
	header     map[string]string
}

const (
	bearer = "Authorization: Bearer alice-1"
	agent  = "User-Agent: freshet/1 by alice"
)

func get(what string, lines ...string) func() *http.Request {
	return func() *http.Request { return newRequest(what, lines...) }
}

// alternate returns the given calls in rotation.
func alternate(calls ...func() *http.Request) func() *http.Request {
	n := 0
	return func() *http.Request {
		n++
		return calls[(n-1)%len(calls)]()
	}
}

var examples = []example{
	{
		name: "court", call: get("GET /case/7"), atOnce: 1, resetAfter: 600 * time.Millisecond, policy: "interval", status: 200, body: []string{"<html>"},
		header: map[string]string{"Content-Type": "text/html;charset=UTF-8"},
	},
	{
		name: "data-go-kr", call: get("GET /weather?serviceKey=k"), atOnce: 30, resetAfter: time.Second, policy: "second", status: 200,
		body: []string{"<OpenAPI_ServiceResponse>", "<returnReasonCode>23</returnReasonCode>"}, header: map[string]string{"Content-Type": "text/xml;charset=UTF-8", "Retry-After": ""},
	},
	{
		name: "discord", call: get("GET /api/v10/channels/12/messages", "Authorization: Bot alice"), atOnce: 5, resetAfter: 5 * time.Second, policy: "route", status: 429,
		body: []string{`"retry_after":5`, `"global":false`}, header: map[string]string{
			"Retry-After": "5", "X-RateLimit-Scope": "user", "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "5.000", "X-RateLimit-Global": "",
		},
	},
	{
		name: "github-graphql", call: get("POST /graphql", bearer, `{"query":"{a(first:100){b(first:99){c(first:9){id}}} rateLimit{cost}}"}`), atOnce: 50, resetAfter: time.Hour, policy: "graphql", status: 200,
		body: []string{`"type":"RATE_LIMITED"`}, header: map[string]string{
			"X-Ratelimit-Remaining": "0", "X-Ratelimit-Resource": "graphql", "X-Ratelimit-Limit": "5000", "X-Ratelimit-Reset": "946688400",
		},
	},
	{
		name: "github-rest", call: get("GET /search/issues?q=x", bearer), atOnce: 30, resetAfter: time.Minute, policy: "search", status: 0,
		body: []string{"API rate limit exceeded"}, header: map[string]string{
			"X-Ratelimit-Limit": "30", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Used": "30", "X-Ratelimit-Reset": "946684860", "X-Ratelimit-Resource": "search", "Retry-After": "",
		},
	},
	{
		name: "hubspot", call: get("GET /crm/v3/objects/contacts/1", bearer), atOnce: 190, resetAfter: 10 * time.Second, policy: "TEN_SECONDLY_ROLLING", status: 429,
		body: []string{`"policyName":"TEN_SECONDLY_ROLLING"`}, header: map[string]string{
			"X-HubSpot-RateLimit-Max": "190", "X-HubSpot-RateLimit-Remaining": "0", "X-HubSpot-RateLimit-Interval-Milliseconds": "10000",
			"X-HubSpot-RateLimit-Daily": "650000", "X-HubSpot-RateLimit-Daily-Remaining": "649810",
		},
	},
	{
		name: "ietf", call: get("GET /thing", bearer), atOnce: 100, resetAfter: time.Minute, policy: "burst", status: 429,
		body: []string{"#quota-exceeded", `"violated-policies":["burst"]`}, header: map[string]string{
			"Content-Type": "application/problem+json", "RateLimit-Policy": `"burst";q=100;w=60,"daily";q=10000;w=86400`,
			"RateLimit": `"burst";r=0;t=60,"daily";r=9900;t=86400`, "Retry-After": "60",
		},
	},
	{
		name: "jira", call: get("GET /rest/api/3/issue/A-1"), atOnce: 10, resetAfter: time.Second, policy: "burst", status: 429,
		header: map[string]string{
			"RateLimit-Reason": "jira-burst-based", "Retry-After": "2", "X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0",
			"Beta-RateLimit": `"tenant-app-quota";r=64980;t=3600`, "Beta-RateLimit-Policy": `"tenant-app-quota";q=65000;w=3600`, "X-Ratelimit-Reset": "2000-01-01T00:00:02Z",
		},
	},
	{
		name: "nexon", call: get("GET /maplestory/v1/id", "X-Nxopen-Api-Key: app-1"), atOnce: 500, resetAfter: time.Second, policy: "second", status: 429,
		body: []string{`OPENAPI00007`},
	},
	{
		name: "nexon-development", call: get("GET /maplestory/v1/id", "X-Nxopen-Api-Key: app-1"), atOnce: 5, resetAfter: time.Second, policy: "second", status: 429,
		body: []string{`{"error":{"message":"Please try again later","name":"OPENAPI00007"}}`}, header: map[string]string{"Retry-After": ""},
	},
	{
		name: "openai", call: get("POST /v1/chat/completions", bearer, `{"model":"m","max_tokens":0}`), atOnce: 500, resetAfter: time.Minute, policy: "requests", status: 429,
		body: []string{`"type":"requests"`, `"code":"rate_limit_exceeded"`}, header: map[string]string{
			"x-ratelimit-limit-requests": "500", "x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-requests": "0",
			"x-ratelimit-remaining-tokens": "26500", "x-ratelimit-reset-requests": "1m0s", "x-ratelimit-reset-tokens": "7s",
		},
	},
	{
		name: "reddit", call: get("GET /r/golang/new", bearer, agent), atOnce: 1000, resetAfter: 10 * time.Minute, policy: "period", status: 429,
		header: map[string]string{"X-Ratelimit-Used": "1000", "X-Ratelimit-Remaining": "0.0", "X-Ratelimit-Reset": "600"},
	},
	{
		name: "riot", call: alternate(get("GET /lol/summoner/v4/summoners/by-puuid/x", "X-Riot-Token: k"), get("GET /lol/match/v5/matches/x", "X-Riot-Token: k")), atOnce: 20, resetAfter: time.Second, policy: "application-1s", status: 429,
		header: map[string]string{
			"X-Rate-Limit-Type": "application", "Retry-After": "1", "X-App-Rate-Limit": "20:1,100:120", "X-App-Rate-Limit-Count": "20:1,20:120",
			"X-Method-Rate-Limit": "30:10", "X-Method-Rate-Limit-Count": "10:10",
		},
	},
	{
		name: "shopify-graphql", call: get("POST /admin/api/graphql.json", "X-Shopify-Access-Token: t", `{"query":"{ shop { name } }"}`), atOnce: 1000, resetAfter: 20 * time.Second, policy: "cost", status: 200,
		body: []string{`"code":"THROTTLED"`, `"currentlyAvailable":0`, `"maximumAvailable":1000`, `"restoreRate":50`, `"actualQueryCost":null`},
	},
	{
		name: "shopify-rest", call: get("GET /admin/api/products/1.json", "X-Shopify-Access-Token: t"), atOnce: 40, resetAfter: 20 * time.Second, policy: "calls", status: 429,
		header: map[string]string{"X-Shopify-Shop-Api-Call-Limit": "40/40", "Retry-After": "2.0"},
	},
	{
		name: "stripe", call: get("GET /v1/customers/cus_1", bearer), atOnce: 25, resetAfter: time.Second, policy: "endpoint-rate", status: 429,
		header: map[string]string{"Stripe-Rate-Limited-Reason": "endpoint-rate", "Retry-After": ""},
	},
}

func TestContracts_HaveExamples(t *testing.T) {
	var named []string
	for _, x := range examples {
		named = append(named, x.name)
	}
	if !slices.Equal(named, Names()) {
		t.Errorf("got examples of %v, want %v", named, Names())
	}
}

func TestContracts_RejectFirstCallOverLimit(t *testing.T) {
	for _, x := range examples {
		t.Run(x.name, func(t *testing.T) {
			run(t, x.name, Options{}, func(t *testing.T, r rig) {
				r.acceptAll(x.atOnce, x.call)
				sleep(x.resetAfter + 1)
				r.acceptAll(x.atOnce, x.call)
				sleep(x.resetAfter + 1)
				r.acceptAll(x.atOnce, x.call)
				if p := r.policy(x.policy); p.MaxInWindow > float64(p.Limit) || p.Used < 0.98*p.Budget || p.Used > p.Budget {
					t.Errorf("all units used, none refused: got %+v", p)
				}
			})
			run(t, x.name, Options{}, func(t *testing.T, r rig) {
				r.acceptAll(x.atOnce, x.call)
				a := r.do(x.call())
				a.check(t, cmp.Or(x.status, a.status), x.body...)
				for name, want := range x.header {
					a.checkHeader(t, name, want)
				}
				s, p := r.u.Stats(), r.policy(x.policy)
				if s.Refused != 1 || s.Refusals[x.policy] != 1 || len(s.Violations) != 1 || !strings.Contains(s.Violations[0], x.policy) {
					t.Errorf("refusal is missing in the stats: %+v", s)
				}
				if p.MaxInWindow <= float64(p.Limit) {
					t.Errorf("log shows no call over the limit: %+v", p)
				}
			})
		})
	}
}

func TestNew_RejectsUnknownNames(t *testing.T) {
	for _, x := range []struct {
		name string
		o    Options
		want string
	}{
		{"githup", Options{}, "court, data-go-kr"},
		{"ietf", Options{Misbehave: map[Switch]float64{"loud": 1}}, `"silent"`},
		{"ietf", Options{Misbehave: map[Switch]float64{SessionExpiry: 1}}, "only by court"},
		{"ietf", Options{Speed: -1}, "above 0"},
		{"ietf", Options{MaxExtraLatency: -1}, "extra latency >= 0"},
	} {
		if _, err := New(x.name, x.o); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %+v: got error %v, want one that contains %s", x.name, x.o, err, x.want)
		}
	}
}
