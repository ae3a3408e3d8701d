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

func TestGitHub_SecondaryLimits(t *testing.T) {
	run(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(180, get("POST /repos/o/r/labels", bearer))
		a := r.do(newRequest("GET /repos/o/r", "Authorization: token alice-2"))
		a.check(t, 403, "secondary rate limit", `secondary-rate-limits"`)
		a.checkHeader(t, "Retry-After", "61")
		a.checkHeader(t, "X-RateLimit-Remaining", "4820")
		sleep(time.Minute + 1)
		r.do(newRequest("GET /repos/o/r", bearer)).check(t, 200)
		if p := r.policy("core"); p.Used != 181 || p.Scope != "alice" {
			t.Errorf("refusal by the secondary limit must not charge the primary one: got %+v", p)
		}
	})
}

func TestGitHub_PrimaryLimit(t *testing.T) {
	call := get("GET /users/u/events", bearer)
	run(t, "github-rest", Options{Speed: 60}, func(t *testing.T, r rig) {
		for range 10 {
			r.acceptAll(500, call)
			sleep(time.Second + 1)
		}
		seen := map[int]bool{}
		for range 20 {
			a := r.do(call())
			a.checkHeader(t, "X-RateLimit-Remaining", "0")
			a.checkHeader(t, "X-RateLimit-Reset", "946684860")
			seen[a.status] = true
		}
		if len(seen) != 2 || !seen[403] || !seen[429] {
			t.Errorf("got refusals with status %v, want 403 and 429", seen)
		}
		r.do(newRequest("GET /rate_limit", bearer)).check(t, 200, `"remaining":0`)
		sleep(50*time.Second - 10)
		r.do(call()).check(t, 200)
	})
}

func TestGitHub_NotModifiedCostsPointsOnly(t *testing.T) {
	var tag string
	run(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		first := r.do(newRequest("GET /repos/o/r", bearer))
		tag = first.header.Get("Etag")
		again := r.do(newRequest("GET /repos/o/r", bearer, "If-None-Match: "+tag))
		again.check(t, http.StatusNotModified)
		again.checkHeader(t, "X-RateLimit-Remaining", "4999")
		again.checkHeader(t, "Etag", tag)
		if again.body != "" || tag == "" {
			t.Errorf("304 to %q: got body %s", tag, again.body)
		}
		r.do(newRequest("GET /repos/o/other", bearer, "If-None-Match: "+tag)).check(t, 200, "value")
		if core, minute := r.policy("core"), r.policy("secondary"); core.Used != 2 || minute.Used != 3 {
			t.Errorf("got %v calls and %v points used", core.Used, minute.Used)
		}
	})
	run(t, "github-rest", Options{Misbehave: map[Switch]float64{NoETag: 1}}, func(t *testing.T, r rig) {
		r.do(newRequest("GET /repos/o/r", bearer)).checkHeader(t, "Etag", "")
		r.do(newRequest("GET /repos/o/r", bearer, "If-None-Match: "+tag)).check(t, 200, "value")
	})
	run(t, "github-rest", Options{Misbehave: map[Switch]float64{Gzip: 1}}, func(t *testing.T, r rig) {
		a := r.do(newRequest("GET /repos/o/r", bearer, "If-None-Match: "+tag, "Accept-Encoding: gzip"))
		a.check(t, http.StatusNotModified)
		a.checkHeader(t, "Content-Encoding", "")
	})
}

func TestGitHub_PageLinksUseRepositoryID(t *testing.T) {
	run(t, "github-rest", Options{}, func(t *testing.T, r rig) {
		next, numbers, pages := "/repos/o/r/issues?per_page=40&state=all", 0, 0
		for next != "" {
			a := r.do(newRequest("GET "+next, bearer))
			var list []struct{ Number int }
			if err := json.Unmarshal([]byte(a.body), &list); err != nil {
				t.Fatal(err)
			}
			for _, issue := range list {
				if numbers++; issue.Number != numbers {
					t.Fatalf("issue %d: got number %d", issue.Number, numbers)
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
				t.Fatalf("got next page %s", next)
			}
			if next == "" && (links["last"] != "" || links["prev"] == "" || links["first"] == "") {
				t.Errorf("last page: got links %v", links)
			}
		}
		if numbers != githubItems || pages != 3 {
			t.Errorf("got %d issues on %d pages", numbers, pages)
		}
		r.do(newRequest("GET /repos/o/r/issues?per_page=100", bearer)).checkHeader(t, "Link", "")
	})
}

func TestGraphQL_CostByConnectionSizes(t *testing.T) {
	for text, want := range map[string][3]int{
		`{viewer{login}}`: {0, 0, 1},
		// GitHub's own example: 1 + 100 + 100·50 requests cost 51 points.
		`{viewer{repositories(first:100){edges{node{issues(first: 50){nodes{labels(last:60){nodes{name}}}}}}}}}`: {5101, 100 + 5000 + 300_000, 51},
		`query($n:Int!){a(first:$n){id} b(first:20){id}}`:                                                        {2, 27, 1},
		`{a(first:$unknown){b(first:1){id}}}`:                                                                    {101, 200, 1},
		`}}{`:                                                                                                    {0, 0, 1},
	} {
		q := query{Query: text, Variables: map[string]any{"n": 7.0}}
		if calls, nodes := q.sizes(); calls != want[0] || nodes != want[1] || githubCost(q) != float64(want[2]) {
			t.Errorf("%s: got %d requests, %d nodes, %v points; want %v", text, calls, nodes, githubCost(q), want)
		}
	}
	run(t, "github-graphql", Options{}, func(t *testing.T, r rig) {
		a := r.do(newRequest("POST /graphql", bearer, `{"query":"{rateLimit{cost} a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a.check(t, 200, `"cost":101`, `"remaining":4899`, `"resetAt":"2000-01-01T01:00:00Z"`, `"used":101`)
		a.checkHeader(t, "X-RateLimit-Remaining", "4899")
		r.acceptAll(48, get("POST /graphql", bearer, `{"query":"{a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a = r.do(newRequest("POST /graphql", bearer, `{"query":"{a(first:100){b(first:100){c(first:9){id}}}}"}`))
		a.check(t, 200, "RATE_LIMITED")
		a.checkHeader(t, "X-RateLimit-Remaining", "0") // the refusal must report 0 remaining points, although 51 remain: too few for this call, which costs 101
	})
	run(t, "github-graphql", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(400, get("POST /graphql", bearer, `{"query":" mutation{star{id}}"}`))
		r.do(newRequest("POST /graphql", bearer, `{"query":"{viewer{id}}"}`)).check(t, 403, "secondary")
	})
}

func TestRiot_MethodsHaveOwnLimits(t *testing.T) {
	call := get("GET /lol/match/v5/matches/KR_1", "X-Riot-Token: k")
	run(t, "riot", Options{}, func(t *testing.T, r rig) {
		r.acceptAll(15, call)
		sleep(time.Second)
		r.acceptAll(15, call)
		sleep(time.Second)
		a := r.do(call())
		a.checkHeader(t, "X-Rate-Limit-Type", "method")
		a.checkHeader(t, "Retry-After", "8")
		r.do(newRequest("GET /lol/other/x", "X-Riot-Token: k")).check(t, 200)
		euw := call()
		euw.Host = "euw.api.example"
		r.do(euw).check(t, 200)
		id := r.do(newRequest("GET /riot/account/v1/accounts/by-riot-id/some%20body/KR1", "X-Riot-Token: k"))
		id.check(t, 200, "puuid", `"gameName":"some body"`, `"tagLine":"KR1"`)
	})
	run(t, "riot", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(call())
		a.check(t, 429)
		a.checkHeader(t, "X-Rate-Limit-Type", "service")
		a.checkHeader(t, "Retry-After", "")
		if s := r.u.Stats(); s.Refused != 0 {
			t.Errorf("a shared refusal must not count: got %+v", s)
		}
	})
}

func TestDiscord_BucketPerRouteAndChannel(t *testing.T) {
	bot := "Authorization: Bot alice"
	run(t, "discord", Options{}, func(t *testing.T, r rig) {
		seven := r.do(newRequest("GET /api/v10/channels/7/messages/70", bot)).header.Get("X-RateLimit-Bucket")
		a := r.do(newRequest("GET /api/v10/channels/8/messages/80", bot))
		a.checkHeader(t, "X-RateLimit-Bucket", seven)
		a.checkHeader(t, "X-RateLimit-Remaining", "4")
		a.checkHeader(t, "X-RateLimit-Reset", "946684805.000")
		b := r.do(newRequest("GET /api/v10/channels/7/messages/71", bot))
		b.checkHeader(t, "X-RateLimit-Remaining", "3")
		if other := r.do(newRequest("GET /api/v10/channels/7/pins", bot)).header.Get("X-RateLimit-Bucket"); other == seven || seven == "" {
			t.Errorf("got buckets %q and %q", seven, other)
		}
		for channel := range 46 {
			r.do(newRequest(fmt.Sprintf("GET /api/v10/channels/%d/pins", 100+channel), bot)).check(t, 200)
		}
		g := r.do(newRequest("GET /api/v10/channels/99/pins", bot))
		g.check(t, 429, `"global":true`)
		g.checkHeader(t, "X-RateLimit-Scope", "global")
		g.checkHeader(t, "X-RateLimit-Global", "true")
	})
}

func TestDiscord_BansAfterInvalidCalls(t *testing.T) {
	run(t, "discord", Options{Speed: 10}, func(t *testing.T, r rig) {
		for range 10_000 {
			r.do(newRequest("GET /api/v10/channels/7/pins")).check(t, 401)
		}
		a := r.do(newRequest("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		a.check(t, 429, "banned")
		a.checkHeader(t, "Retry-After", "60")
		a.checkHeader(t, "X-RateLimit-Limit", "")
		elsewhere := newRequest("GET /api/v10/channels/7/pins", "Authorization: Bot alice")
		elsewhere.RemoteAddr = "192.0.2.77:1"
		r.do(elsewhere).check(t, 200)
		sleep(time.Minute)
		r.do(newRequest("GET /api/v10/channels/7/pins", "Authorization: Bot alice")).check(t, 200)
	})
	run(t, "discord", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(newRequest("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		a.check(t, 429, `"global":false`)
		a.checkHeader(t, "X-RateLimit-Scope", "shared")
		if p := r.u.Stats().Policies; p[1].Name != "invalid" || p[1].Used != 0 {
			t.Errorf("a shared refusal must not count as invalid: got %+v", p)
		}
	})
	run(t, "discord", Options{Misbehave: map[Switch]float64{Forbidden: 100}}, func(t *testing.T, r rig) {
		for range 7 {
			r.do(newRequest("GET /api/v10/channels/7/pins", "Authorization: Bot alice"))
		}
		if p := r.policy("invalid"); p.Used != 7 {
			t.Errorf("five forbidden and two refused calls: got %+v", p)
		}
	})
}

func TestReddit_RejectsGenericUserAgent(t *testing.T) {
	run(t, "reddit", Options{}, func(t *testing.T, r rig) {
		for _, generic := range []string{"", "Go-http-client/1.1", "python-requests/2", "Mozilla/5.0"} {
			r.do(newRequest("GET /r/x", bearer, "User-Agent: "+generic)).check(t, 429)
		}
		r.do(newRequest("GET /r/x", bearer, agent)).checkHeader(t, "X-Ratelimit-Remaining", "999.0")
		if s := r.u.Stats(); s.Refusals["user-agent"] != 4 || s.Refused != 4 {
			t.Errorf("got stats %+v", s)
		}
	})
}

func TestShopify_RefundsUnusedCost(t *testing.T) {
	call := get("POST /admin/api/graphql.json", "X-Shopify-Access-Token: t", `{"query":"{products(first:100){id}}"}`)
	run(t, "shopify-graphql", Options{}, func(t *testing.T, r rig) {
		r.do(call()).check(t, 200, `"requestedQueryCost":101`, `"actualQueryCost":46`, `"currentlyAvailable":954`)
		r.do(call()).check(t, 200, `"currentlyAvailable":908`)
		if p := r.policy("cost"); p.Used != 92 {
			t.Errorf("got use %+v", p)
		}
	})
	run(t, "shopify-graphql", Options{MaxExtraLatency: time.Hour}, func(t *testing.T, r rig) {
		done := make(chan struct{})
		go func() { r.do(call()); close(done) }()
		sleep(time.Nanosecond)
		if p := r.policy("cost"); p.Used != 101 {
			t.Errorf("before the response: got %+v", p)
		}
		<-done
		if p := r.policy("cost"); p.Used != 46 {
			t.Errorf("got use %+v", p)
		}
	})
	run(t, "shopify-rest", Options{}, func(t *testing.T, r rig) {
		one := get("GET /admin/api/products/1.json", "X-Shopify-Access-Token: t")
		r.acceptAll(40, one)
		sleep(500 * time.Millisecond)
		r.do(one()).checkHeader(t, "X-Shopify-Shop-Api-Call-Limit", "40/40")
		sleep(750 * time.Millisecond)
		r.do(one()).checkHeader(t, "X-Shopify-Shop-Api-Call-Limit", "40/40")
		r.do(one()).check(t, 429)
	})
}

func TestStripe_NamesExceededLimit(t *testing.T) {
	run(t, "stripe", Options{}, func(t *testing.T, r rig) {
		for endpoint := range 4 {
			r.acceptAll(25, get("GET /v1/things"+strconv.Itoa(endpoint), bearer))
		}
		r.do(newRequest("GET /v1/other", bearer)).checkHeader(t, "Stripe-Rate-Limited-Reason", "global-rate")
	})
	run(t, "stripe", Options{}, func(t *testing.T, r rig) {
		for range 100 {
			r.acceptAll(10, get("POST /v1/customers/cus_1", bearer))
			sleep(time.Second + 1)
		}
		r.do(newRequest("POST /v1/customers/cus_1", bearer)).checkHeader(t, "Stripe-Rate-Limited-Reason", "resource-specific")
		r.do(newRequest("POST /v1/customers/cus_2", bearer)).check(t, 200)
	})
	run(t, "stripe", Options{Misbehave: map[Switch]float64{SharedRefusal: 100}}, func(t *testing.T, r rig) {
		a := r.do(newRequest("POST /v1/customers/cus_1", bearer))
		a.check(t, 429, "lock_timeout")
		a.checkHeader(t, "Stripe-Rate-Limited-Reason", "")
	})
	run(t, "stripe", Options{MaxExtraLatency: time.Hour}, func(t *testing.T, r rig) {
		for range 20 {
			go r.do(newRequest("GET /v1/customers", bearer))
		}
		sleep(1)
		quick := r.u.Stats().MaxInFlight
		r.do(newRequest("GET /v1/other", bearer)).checkHeader(t, "Stripe-Rate-Limited-Reason", "global-concurrency")
		if quick != 20 {
			t.Errorf("got %d in flight", quick)
		}
		sleep(time.Hour)
	})
}

func TestOpenAI_RefundsUnusedTokens(t *testing.T) {
	body := `{"model":"m","max_tokens":10000,"pad":"x"}` // the body has 42 bytes, which cost 11 tokens
	call := get("POST /v1/chat/completions", bearer, body)
	run(t, "openai", Options{}, func(t *testing.T, r rig) {
		a := r.do(call())
		a.check(t, 200, `"total_tokens":5011`)
		a.checkHeader(t, "x-ratelimit-remaining-tokens", "19989")
		a.checkHeader(t, "x-ratelimit-reset-tokens", "20.022s")
		a.checkHeader(t, "x-ratelimit-reset-requests", "120ms")
		r.acceptAll(3, call)
		r.do(call()).check(t, 429, `"type":"tokens"`)
		r.do(newRequest("POST /v1/chat/completions", bearer, `{"model":"other"}`)).checkHeader(t, "x-ratelimit-remaining-tokens", "29739")
		r.do(newRequest("POST /v1/chat/completions", bearer, `{"model":"third","max_completion_tokens":5,"max_tokens":9}`)).checkHeader(t, "x-ratelimit-remaining-tokens", "29980")
	})
}

func TestJira_ExhaustedQuotaHeaders(t *testing.T) {
	search := get("GET /rest/api/3/search?maxResults=99")
	run(t, "jira", Options{Skew: 10 * time.Minute}, func(t *testing.T, r rig) {
		for n := 1; n <= 650; n++ {
			a := r.do(search())
			a.check(t, 200, `"id":"10098"`)
			if near := a.header.Get("X-Beta-Ratelimit-Nearlimit") == "true"; near != (n > 520 && n < 650) {
				t.Fatalf("after %d points: got near limit %v", 100*n, near)
			}
			if n%10 == 0 {
				sleep(time.Second + 1)
			}
		}
		a := r.do(newRequest("GET /rest/api/3/issue/A-1"))
		a.check(t, 429)
		a.checkHeader(t, "RateLimit-Reason", "jira-quota-tenant-based")
		a.checkHeader(t, "Beta-RateLimit-Policy", "")
		a.checkHeader(t, "X-Beta-Ratelimit-Reason", "jira-quota-tenant-based")
		a.checkHeader(t, "X-Beta-Ratelimit-Reset", "2000-01-01T01:00Z")
		a.checkHeader(t, "Beta-RateLimit", `"tenant-app-quota";r=0;t=3655`) // Jira reports the reset too late, in 3,655 s instead of 2,935 s
		a.checkHeader(t, "Retry-After", "2935")
		if s := r.u.Stats(); s.Refusals["tenant-app-quota"] != 1 || s.Refused != 1 {
			t.Errorf("got stats %+v", s)
		}
		sleep(49*time.Minute - 5*time.Second)
		r.do(newRequest("POST /rest/api/3/issue")).checkHeader(t, "Beta-RateLimit", `"tenant-app-quota";r=64999;t=3600`)
	})
}

func TestCourt_SessionsExpire(t *testing.T) {
	run(t, "court", Options{Misbehave: map[Switch]float64{SessionExpiry: 2}}, func(t *testing.T, r rig) {
		first := r.do(newRequest("GET /case/7"))
		if all := first.header.Values("Set-Cookie"); len(all) != 2 || !strings.HasPrefix(all[0], "JSESSIONID=") || !strings.Contains(all[1], "WMONID=") || !strings.Contains(all[1], "Expires=Mon, 01 Jan 2001") {
			t.Fatalf("got cookies %q", all)
		}
		session, _, _ := strings.Cut(first.header.Get("Set-Cookie"), ";")
		with := func() response {
			sleep(2 * time.Second)
			return r.do(newRequest("GET /case/7", "Cookie: "+session+"; WMONID=x"))
		}
		with().check(t, 200, "value")
		with().check(t, 200, "value")
		dead := with()
		dead.check(t, 200, "<html>")
		if next := dead.header.Values("Set-Cookie"); len(next) != 1 || strings.HasPrefix(next[0], session) || !strings.HasPrefix(next[0], "JSESSIONID=") {
			t.Errorf("got cookies %q", next)
		}
		with().check(t, 200, "<html>")
		if s := r.u.Stats(); s.Refused != 0 {
			t.Errorf("an expired session must not count as refused: got %+v", s)
		}
	})
}

func TestCourt_ServesLayouts(t *testing.T) {
	run(t, "court", Options{}, func(t *testing.T, r rig) {
		first := r.do(newRequest("GET /ui/ssgo003/SSGO003F10.xml"))
		first.check(t, 200, "<w2:layout")
		if got := first.header.Get("Content-Type"); got != xmlType {
			t.Errorf("got the content type %s, want %s", got, xmlType)
		}
		sleep(2 * time.Second)
		if again := r.do(newRequest("GET /ui/ssgo003/SSGO003F10.xml")); again.body != first.body {
			t.Errorf("second read: got %q, want the same document %q", again.body, first.body)
		}
	})
}

func TestCourt_LimitsRateAndInterval(t *testing.T) {
	call := get("GET /case/7")
	run(t, "court", Options{}, func(t *testing.T, r rig) {
		for range 40 {
			r.acceptAll(1, call)
			sleep(700 * time.Millisecond)
		}
		r.do(call()).check(t, 200, "<html>")
		sleep(32*time.Second + 1)
		r.do(call()).check(t, 200, "value")
		if s := r.u.Stats(); s.Refusals["minute"] != 1 || s.Refused != 1 {
			t.Errorf("got stats %+v", s)
		}
	})
}

// The simulated lists grow and shrink, and items move in lists that are sorted by updates. So a walk
// meets all changes of a real list.
func TestGitHub_ListsChange(t *testing.T) {
	run(t, "github-rest", Options{Speed: 60}, func(t *testing.T, r rig) {
		read := func(path string, headers ...string) (numbers []int, a response) {
			a = r.do(newRequest("GET "+path, append([]string{bearer}, headers...)...))
			var list []struct{ Number, ID int }
			if a.body != "" {
				if err := json.Unmarshal([]byte(a.body), &list); err != nil {
					t.Fatal(err)
				}
			}
			for _, i := range list {
				numbers = append(numbers, max(i.Number, i.ID))
			}
			return numbers, a
		}
		const path = "/repos/o/r/issues?sort=updated&direction=asc&per_page=100"
		before, a := read(path)
		if len(before) != githubItems {
			t.Fatalf("issues: got %d, want %d", len(before), githubItems)
		}
		tag := "If-None-Match: " + a.header.Get("Etag")
		if _, a := read(path, tag); a.status != http.StatusNotModified {
			t.Errorf("unchanged list: got status %d, want 304", a.status)
		}
		sleep(10 * time.Second) // the lists change ten times
		after, a := read(path, tag)
		rest, _ := read(path + "&page=2")
		if after = append(after, rest...); a.status != http.StatusOK || len(after) != githubItems+10-1 {
			t.Errorf("after ten ticks: got status %d and %d issues, want 200 and %d", a.status, len(after), githubItems+9)
		}
		if last := after[len(after)-1]; last == before[len(before)-1] {
			t.Errorf("last issue by updates: got %d before and after the updates", last)
		}
		if newer, _ := read(path + "&since=2000-01-01T00:00:01Z"); len(newer) == 0 || len(newer) > 25 {
			t.Errorf("issues since the first tick: got %d, want only the new and the updated ones", len(newer))
		}
		if repos, _ := read("/users/u/repos?sort=updated&per_page=5"); len(repos) != 5 || repos[0] == 1 {
			t.Errorf("repositories: got %v, want the newest five", repos)
		}
	})
}
