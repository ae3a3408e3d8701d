package contract

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestGitHubRefusesByPointsAndByCallsInFlightWithoutARemainder(t *testing.T) {
	play(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		r.within(180, get("POST /repos/o/r/labels", bearer))
		a := r.do(ask("GET /repos/o/r", "Authorization: token alice-2"))
		a.has(t, 403, "secondary rate limit", `secondary-rate-limits"`)
		a.says(t, "Retry-After", "61")
		a.says(t, "X-RateLimit-Remaining", "4820")
		pass(time.Minute + 1)
		r.do(ask("GET /repos/o/r", bearer)).has(t, 200)
		if p := r.policy("core"); p.Used != 181 || p.Scope != "alice" {
			t.Errorf("a refusal by the secondary limit costs nothing of the primary one: %+v", p)
		}
	})
}

func TestGitHubCountsFiveThousandAnHour(t *testing.T) {
	call := get("GET /users/u/events", bearer)
	play(t, "github-rest", Options{Speed: 60}, func(t *testing.T, r rig) {
		for range 10 {
			r.within(500, call)
			pass(time.Second + 1)
		}
		seen := map[int]bool{}
		for range 20 {
			a := r.do(call())
			a.says(t, "X-RateLimit-Remaining", "0")
			a.says(t, "X-RateLimit-Reset", "946684860")
			seen[a.status] = true
		}
		if len(seen) != 2 || !seen[403] || !seen[429] {
			t.Errorf("refused with %v, and both are documented", seen)
		}
		r.do(ask("GET /rate_limit", bearer)).has(t, 200, `"remaining":0`)
		pass(50*time.Second - 10)
		r.do(call()).has(t, 200)
	})
}

func TestWhatHasNotChangedCostsGitHubsPointsAlone(t *testing.T) {
	var tag string
	play(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		first := r.do(ask("GET /repos/o/r", bearer))
		tag = first.header.Get("Etag")
		again := r.do(ask("GET /repos/o/r", bearer, "If-None-Match: "+tag))
		again.has(t, http.StatusNotModified)
		again.says(t, "X-RateLimit-Remaining", "4999")
		again.says(t, "Etag", tag)
		if again.body != "" || tag == "" {
			t.Errorf("304 to %q has a body: %s", tag, again.body)
		}
		r.do(ask("GET /repos/o/other", bearer, "If-None-Match: "+tag)).has(t, 200, "value")
		if core, minute := r.policy("core"), r.policy("secondary"); core.Used != 2 || minute.Used != 3 {
			t.Errorf("used are %v calls and %v points", core.Used, minute.Used)
		}
	})
	play(t, "github-rest", Options{Misbehave: map[Switch]float64{NoETag: 1}}, func(t *testing.T, r rig) {
		r.do(ask("GET /repos/o/r", bearer)).says(t, "Etag", "")
		r.do(ask("GET /repos/o/r", bearer, "If-None-Match: "+tag)).has(t, 200, "value")
	})
	play(t, "github-rest", Options{Misbehave: map[Switch]float64{Gzip: 1}}, func(t *testing.T, r rig) {
		a := r.do(ask("GET /repos/o/r", bearer, "If-None-Match: "+tag, "Accept-Encoding: gzip"))
		a.has(t, http.StatusNotModified)
		a.says(t, "Content-Encoding", "")
	})
}

func TestGitHubsPagesAreLinkedByTheRepositorysNumber(t *testing.T) {
	play(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		next, numbers, pages := "/repos/o/r/issues?per_page=40&state=all", 0, 0
		for next != "" {
			a := r.do(ask("GET "+next, bearer))
			var list []struct{ Number int }
			if err := json.Unmarshal([]byte(a.body), &list); err != nil {
				t.Fatal(err)
			}
			for _, issue := range list {
				if numbers++; issue.Number != numbers {
					t.Fatalf("issue %d came as number %d", issue.Number, numbers)
				}
			}
			pages++
			links := map[string]string{}
			for link := range strings.SplitSeq(a.header.Get("Link"), ", ") {
				address, rel, _ := strings.Cut(link, ">; rel=")
				links[strings.Trim(rel, `"`)] = strings.TrimPrefix(address, "<http://kr.api.example")
			}
			next = links["next"]
			if next != "" && (!strings.HasPrefix(next, "/repositories/") || !strings.Contains(next, "state=all")) {
				t.Fatalf("the next page is %s", next)
			}
			if next == "" && (links["last"] != "" || links["prev"] == "" || links["first"] == "") {
				t.Errorf("the last page has %v", links)
			}
		}
		if numbers != issues || pages != 3 {
			t.Errorf("%d issues on %d pages", numbers, pages)
		}
		r.do(ask("GET /repos/o/r/issues?per_page=100", bearer)).says(t, "Link", "")
	})
}

func TestAQueryCostsByTheSizesOfItsConnections(t *testing.T) {
	for text, want := range map[string][3]int{
		`{viewer{login}}`: {0, 0, 1},
		// GitHub's own example: 1 + 100 + 100·50 requests are 51 points.
		`{viewer{repositories(first:100){edges{node{issues(first: 50){nodes{labels(last:60){nodes{name}}}}}}}}}`: {5101, 100 + 5000 + 300_000, 51},
		`query($n:Int!){a(first:$n){id} b(first:20){id}}`:                                                        {2, 27, 1},
		`{a(first:$unknown){b(first:1){id}}}`:                                                                    {101, 200, 1},
		`}}{`:                                                                                                    {0, 0, 1},
	} {
		q := query{Query: text, Variables: map[string]any{"n": 7.0}}
		if calls, nodes := q.sizes(); calls != want[0] || nodes != want[1] || githubCost(q) != float64(want[2]) {
			t.Errorf("%s: %d requests, %d nodes, %v points; not %v", text, calls, nodes, githubCost(q), want)
		}
	}
	play(t, "github-graphql", Options{}, func(t *testing.T, r rig) {
		a := r.do(ask("POST /graphql", bearer, `{"query":"{rateLimit{cost} a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a.has(t, 200, `"cost":101`, `"remaining":4899`, `"resetAt":"2000-01-01T01:00:00Z"`, `"used":101`)
		a.says(t, "X-RateLimit-Remaining", "4899")
		r.within(48, get("POST /graphql", bearer, `{"query":"{a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a = r.do(ask("POST /graphql", bearer, `{"query":"{a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a.has(t, 200, "RATE_LIMITED")
		a.says(t, "X-RateLimit-Remaining", "0") // 51 are, which are too few
	})
	play(t, "github-graphql", Options{}, func(t *testing.T, r rig) {
		r.within(400, get("POST /graphql", bearer, `{"query":" mutation{star{id}}"}`))
		r.do(ask("POST /graphql", bearer, `{"query":"{viewer{id}}"}`)).has(t, 403, "secondary")
	})
}

func TestRiotCountsMethodsApart(t *testing.T) {
	call := get("GET /lol/match/v5/matches/KR_1", "X-Riot-Token: k")
	play(t, "riot", Options{}, func(t *testing.T, r rig) {
		r.within(15, call)
		pass(time.Second)
		r.within(15, call)
		pass(time.Second)
		a := r.do(call())
		a.says(t, "X-Rate-Limit-Type", "method")
		a.says(t, "Retry-After", "8")
		r.do(ask("GET /lol/other/x", "X-Riot-Token: k")).has(t, 200)
		euw := call()
		euw.Host = "euw.api.example"
		r.do(euw).has(t, 200)
	})
	play(t, "riot", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(call())
		a.has(t, 429)
		a.says(t, "X-Rate-Limit-Type", "service")
		a.says(t, "Retry-After", "")
		if s := r.u.Stats(); s.Refused != 0 {
			t.Errorf("what others do counts as no refusal: %+v", s)
		}
	})
}

func TestDiscordsBucketsAreOfRouteAndChannel(t *testing.T) {
	bot := "Authorization: Bot alice"
	play(t, "discord", Options{}, func(t *testing.T, r rig) {
		seven := r.do(ask("GET /api/v10/channels/7/messages/70", bot)).header.Get("X-RateLimit-Bucket")
		a := r.do(ask("GET /api/v10/channels/8/messages/80", bot))
		a.says(t, "X-RateLimit-Bucket", seven)
		a.says(t, "X-RateLimit-Remaining", "4")
		a.says(t, "X-RateLimit-Reset", "946684805.000")
		b := r.do(ask("GET /api/v10/channels/7/messages/71", bot))
		b.says(t, "X-RateLimit-Remaining", "3")
		if other := r.do(ask("GET /api/v10/channels/7/pins", bot)).header.Get("X-RateLimit-Bucket"); other == seven || seven == "" {
			t.Errorf("buckets %q and %q", seven, other)
		}
		for channel := range 46 {
			r.do(ask(fmt.Sprintf("GET /api/v10/channels/%d/pins", 100+channel), bot)).has(t, 200)
		}
		g := r.do(ask("GET /api/v10/channels/99/pins", bot))
		g.has(t, 429, `"global":true`)
		g.says(t, "X-RateLimit-Scope", "global")
		g.says(t, "X-RateLimit-Global", "true")
	})
}

func TestDiscordBansAnAddressOfTenThousandInvalidCalls(t *testing.T) {
	play(t, "discord", Options{Speed: 10}, func(t *testing.T, r rig) {
		for range 10_000 {
			r.do(ask("GET /api/v10/channels/7/pins")).has(t, 401)
		}
		a := r.do(ask("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		a.has(t, 429, "banned")
		a.says(t, "Retry-After", "60")
		a.says(t, "X-RateLimit-Limit", "")
		elsewhere := ask("GET /api/v10/channels/7/pins", "Authorization: Bot alice")
		elsewhere.RemoteAddr = "192.0.2.77:1"
		r.do(elsewhere).has(t, 200)
		pass(time.Minute)
		r.do(ask("GET /api/v10/channels/7/pins", "Authorization: Bot alice")).has(t, 200)
	})
	play(t, "discord", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(ask("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		a.has(t, 429, `"global":false`)
		a.says(t, "X-RateLimit-Scope", "shared")
		if p := r.u.Stats().Policies; p[1].Name != "invalid" || p[1].Used != 0 {
			t.Errorf("a shared refusal is no invalid call: %+v", p)
		}
	})
	play(t, "discord", Options{Misbehave: map[Switch]float64{Forbidden: 100}}, func(t *testing.T, r rig) {
		for range 7 {
			r.do(ask("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		}
		if p := r.policy("invalid"); p.Used != 7 {
			t.Errorf("five are forbidden and two over the limit: %+v", p)
		}
	})
}

func TestRedditWantsAUserAgentOfOnesOwn(t *testing.T) {
	play(t, "reddit", Options{}, func(t *testing.T, r rig) {
		for _, generic := range []string{"", "Go-http-client/1.1", "python-requests/2", "Mozilla/5.0"} {
			r.do(ask("GET /r/x", bearer, "User-Agent: "+generic)).has(t, 429)
		}
		r.do(ask("GET /r/x", bearer, agent)).says(t, "X-Ratelimit-Remaining", "999.0")
		if s := r.u.Stats(); s.Refusals["user-agent"] != 4 || s.Refused != 4 {
			t.Errorf("%+v", s)
		}
	})
}

func TestShopifyGivesBackWhatAQueryDidNotCost(t *testing.T) {
	call := get("POST /admin/api/graphql.json", "X-Shopify-Access-Token: t", `{"query":"{products(first:100){id}}"}`)
	play(t, "shopify-graphql", Options{}, func(t *testing.T, r rig) {
		r.do(call()).has(t, 200, `"requestedQueryCost":101`, `"actualQueryCost":46`, `"currentlyAvailable":954`)
		r.do(call()).has(t, 200, `"currentlyAvailable":908`)
		if p := r.policy("cost"); p.Used != 92 {
			t.Errorf("used: %+v", p)
		}
	})
	play(t, "shopify-graphql", Options{Late: time.Hour}, func(t *testing.T, r rig) {
		done := make(chan struct{})
		go func() { r.do(call()); close(done) }()
		pass(time.Nanosecond)
		if p := r.policy("cost"); p.Used != 101 {
			t.Errorf("held until the answer: %+v", p)
		}
		<-done
		if p := r.policy("cost"); p.Used != 46 {
			t.Errorf("used: %+v", p)
		}
	})
	play(t, "shopify-rest", Options{}, func(t *testing.T, r rig) {
		one := get("GET /admin/api/products/1.json", "X-Shopify-Access-Token: t")
		r.within(40, one)
		pass(500 * time.Millisecond)
		r.do(one()).says(t, "X-Shopify-Shop-Api-Call-Limit", "40/40")
		pass(750 * time.Millisecond)
		r.do(one()).says(t, "X-Shopify-Shop-Api-Call-Limit", "40/40")
		r.do(one()).has(t, 429)
	})
}

func TestStripeSaysWhichLimitItWas(t *testing.T) {
	play(t, "stripe", Options{}, func(t *testing.T, r rig) {
		for endpoint := range 4 {
			r.within(25, get("GET /v1/things"+strconv.Itoa(endpoint), bearer))
		}
		r.do(ask("GET /v1/other", bearer)).says(t, "Stripe-Rate-Limited-Reason", "global-rate")
	})
	play(t, "stripe", Options{}, func(t *testing.T, r rig) {
		for range 100 {
			r.within(10, get("POST /v1/customers/cus_1", bearer))
			pass(time.Second + 1)
		}
		r.do(ask("POST /v1/customers/cus_1", bearer)).says(t, "Stripe-Rate-Limited-Reason", "resource-specific")
		r.do(ask("POST /v1/customers/cus_2", bearer)).has(t, 200)
	})
	play(t, "stripe", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(ask("POST /v1/customers/cus_1", bearer))
		a.has(t, 429, "lock_timeout")
		a.says(t, "Stripe-Rate-Limited-Reason", "")
	})
	play(t, "stripe", Options{Late: time.Hour}, func(t *testing.T, r rig) {
		for range 20 {
			go r.do(ask("GET /v1/customers", bearer))
		}
		pass(1)
		quick := r.u.Stats().MaxInFlight
		r.do(ask("GET /v1/other", bearer)).says(t, "Stripe-Rate-Limited-Reason", "global-concurrency")
		if quick != 20 {
			t.Errorf("%d in flight", quick)
		}
		pass(time.Hour)
	})
}

func TestOpenAIHoldsTheEstimateAndGivesBackTheRest(t *testing.T) {
	body := `{"model":"m","max_tokens":10000,"pad":"x"}` // 42 bytes, 11 tokens
	call := get("POST /v1/chat/completions", bearer, body)
	play(t, "openai", Options{}, func(t *testing.T, r rig) {
		a := r.do(call())
		a.has(t, 200, `"total_tokens":5011`)
		a.says(t, "x-ratelimit-remaining-tokens", "19989")
		a.says(t, "x-ratelimit-reset-tokens", "20.022s")
		a.says(t, "x-ratelimit-reset-requests", "120ms")
		r.within(3, call)
		r.do(call()).has(t, 429, `"type":"tokens"`)
		r.do(ask("POST /v1/chat/completions", bearer, `{"model":"other"}`)).says(t, "x-ratelimit-remaining-tokens", "29739")
		r.do(ask("POST /v1/chat/completions", bearer, `{"model":"third","max_completion_tokens":5,"max_tokens":9}`)).says(t, "x-ratelimit-remaining-tokens", "29980")
	})
}

func TestJirasPolicyVanishesAndItsResetMovesUpWhenThePointsAreGone(t *testing.T) {
	search := get("GET /rest/api/3/search?maxResults=99")
	play(t, "jira", Options{Skew: 10 * time.Minute}, func(t *testing.T, r rig) {
		for n := 1; n <= 650; n++ {
			a := r.do(search())
			a.has(t, 200, `"id":"10098"`)
			if near := a.header.Get("X-Beta-Ratelimit-Nearlimit") == "true"; near != (n > 520 && n < 650) {
				t.Fatalf("after %d points: near the limit is %v", 100*n, near)
			}
			if n%10 == 0 {
				pass(time.Second + 1)
			}
		}
		a := r.do(ask("GET /rest/api/3/issue/A-1"))
		a.has(t, 429)
		a.says(t, "RateLimit-Reason", "jira-quota-tenant-based")
		a.says(t, "Beta-RateLimit-Policy", "")
		a.says(t, "X-Beta-Ratelimit-Reason", "jira-quota-tenant-based")
		a.says(t, "X-Beta-Ratelimit-Reset", "2000-01-01T01:00Z")
		a.says(t, "Beta-RateLimit", `"tenant-app-quota";r=0;t=3655`) // of 2,935 s
		a.says(t, "Retry-After", "2935")
		if s := r.u.Stats(); s.Refusals["tenant-app-quota"] != 1 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
		pass(49*time.Minute - 5*time.Second)
		r.do(ask("POST /rest/api/3/issue")).says(t, "Beta-RateLimit", `"tenant-app-quota";r=64999;t=3600`)
	})
}

func TestTheCourtsVisitsDieAndAnotherBegins(t *testing.T) {
	play(t, "court", Options{Misbehave: map[Switch]float64{SessionExpiry: 2}}, func(t *testing.T, r rig) {
		first := r.do(ask("GET /case/7"))
		if all := first.header.Values("Set-Cookie"); len(all) != 2 || !strings.HasPrefix(all[0], "JSESSIONID=") || !strings.Contains(all[1], "WMONID=") || !strings.Contains(all[1], "Expires=Mon, 01 Jan 2001") {
			t.Fatalf("cookies are %q", all)
		}
		session, _, _ := strings.Cut(first.header.Get("Set-Cookie"), ";")
		with := func() answer {
			pass(2 * time.Second)
			return r.do(ask("GET /case/7", "Cookie: "+session+"; WMONID=x"))
		}
		with().has(t, 200, "value")
		with().has(t, 200, "value")
		dead := with()
		dead.has(t, 200, "<html>")
		if next := dead.header.Values("Set-Cookie"); len(next) != 1 || strings.HasPrefix(next[0], session) || !strings.HasPrefix(next[0], "JSESSIONID=") {
			t.Errorf("cookies are %q", next)
		}
		with().has(t, 200, "<html>")
		if s := r.u.Stats(); s.Refused != 0 {
			t.Errorf("a dead visit is no refusal: %+v", s)
		}
	})
}

func TestTheCourtAllowsFortyAMinuteApart(t *testing.T) {
	call := get("GET /case/7")
	play(t, "court", Options{}, func(t *testing.T, r rig) {
		for range 40 {
			r.within(1, call)
			pass(700 * time.Millisecond)
		}
		r.do(call()).has(t, 200, "<html>")
		pass(32*time.Second + 1)
		r.do(call()).has(t, 200, "value")
		if s := r.u.Stats(); s.Refusals["minute"] != 1 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}
