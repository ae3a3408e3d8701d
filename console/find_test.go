package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// fillFind sets the items, processes and calls of a rig.
func fillFind(r *rig) {
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	r.found = find.ItemPage{Next: "c9", Items: []find.Item{
		{Key: "a1", Freshness: store.Fresh, CheckedAt: ago(time.Minute), ChangedAt: ago(time.Hour), ReadAt: ago(time.Second), Prefetched: true, DueAt: testNow.Add(time.Hour)},
		{Key: "b2", Freshness: store.Stale, CheckedAt: ago(5 * time.Hour), Failure: &find.ItemFailure{State: store.Failed, Reason: "UPSTREAM_4XX", Held: true, Until: testNow.Add(time.Hour)}},
		{Key: "c9"},
		{Key: "hr.secret", Freshness: store.Fresh},
	}}
	r.running = []status.Process{
		{Name: "host/1", Role: "query", Version: "v1.2.3", Started: ago(3 * time.Hour), At: testNow},
		{
			Name: "host/2", Role: "worker", Version: "v1.3.0", Commit: "0123456789abcdef", Started: ago(9 * time.Minute), At: ago(20 * time.Second), InFlight: 12,
			Partitions: map[string][]int32{"nexon.update-priority-high": {0, 7}, "nexon.update-priority-low": {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}}, LastError: &status.ProcessError{At: ago(time.Minute), Level: "ERROR", Text: "redis connection lost"},
		},
	}
	call := func(key, outcome string, code int, ms float64) status.SharedCall {
		return status.SharedCall{Source: "nexon", Process: "host/2", Call: status.Call{
			At: testNow, Facet: "character", Key: key, Lane: schemas.High, Status: code, Outcome: outcome, MS: ms, WaitedMS: 3.5, Bytes: 1200, Attempt: 1,
		}}
	}
	r.upstreamCalls = status.Calls{
		Last:   []status.SharedCall{call("a1", "2xx", 200, 42), call("slow", "2xx", 200, 4200), call("b2", "5xx", 503, 12), call("hr.secret", "2xx", 200, 1)},
		Failed: []status.SharedCall{call("b2", "5xx", 503, 12)},
	}
	r.upstreamCalls.Last[0].Skipped = 70
	r.entityAges = map[string]find.Ages{"nexon": {Sampled: 1100, Counts: [7][3]int64{{40, 120, 90}, {30, 100, 80}, {35, 140, 100}, {20, 90, 60}, {0, 20, 40}, {0, 0, 35}, {0, 0, 100}}}}
}

func TestItems_ShowTheMatches(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	d := r.get(root + "/items?facet=nexon/character&prefix=a&show=failing&after=a0")
	if got, want := r.queries[0], (find.ItemQuery{Source: "nexon", Facet: "character", Prefix: "a", After: "a0", Filter: find.FailingItems}); got != want {
		t.Errorf("query: got %+v, want %+v", got, want)
	}
	for _, want := range []string{"a1", "failed: UPSTREAM_4XX, held until 13:00", "never fetched", "1 min ago"} {
		if got := d.textByID("items"); !strings.Contains(got, want) {
			t.Errorf("items: got %q, want it to contain %q", got, want)
		}
	}
	if n := d.linksTo(root + "/items?after=c9&facet=nexon%2Fcharacter&prefix=a&show=failing"); n != 1 {
		t.Errorf("links to the next page: got %d, want 1", n)
	}
	for path, want := range map[string]int{"?facet=nexon/character&show=odd": 400, "?facet=nexon/odd": 400, "?facet=odd/character": 400, "?facet=nexon/character&prefix=%00": 400, "": 200} {
		r.findErr = nil
		if strings.Contains(path, "show=odd") {
			r.findErr = find.ErrUnknownFilter
		}
		if got := r.get(root + "/items" + path).status; got != want {
			t.Errorf("%s: got the status %d, want %d", path, got, want)
		}
	}
	r.readErr, r.findErr = errBroken, nil
	if got := r.get(root + "/items").status; got != http.StatusServiceUnavailable {
		t.Errorf("without a database: got the status %d, want 503", got)
	}
}

func TestFind_HidesEntitiesOfOtherVisibilities(t *testing.T) {
	r := newRig(t)
	r.loginRequired = true
	fillRig(r)
	for _, page := range []string{"/items", "/calls"} {
		if text := r.get(root+page, "Authorization", "Bearer inspect").text(); strings.Contains(text, "secret") || !strings.Contains(text, "a1") {
			t.Errorf("%s: got %q, want a1 and nothing of hr.secret", page, text)
		}
		if text := r.get(root+page, "Authorization", "Bearer inspect,see:hr").text(); !strings.Contains(text, "secret") {
			t.Errorf("%s: a client with the scope see:hr does not see hr.secret", page)
		}
	}
}

func TestProcesses_ShowVersionsAndPartitions(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	text := r.get(root + "/processes").text()
	for _, want := range []string{
		"The processes run different versions: v1.2.3, v1.3.0 (01234567).", "nexon.update-priority-high 0, 7; nexon.update-priority-low 12–23", "no report for 20 s", "1 min ago: redis connection lost", "3 h",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, want it to contain %q", text, want)
		}
	}
	if d := r.get(root); !strings.Contains(d.text(), "Processes run different versions: v1.2.3, v1.3.0 (01234567).") {
		t.Error("the overview does not show that versions differ")
	}
}

func TestCalls_AreFilteredAndSorted(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	rows := func(query, table string) []string {
		t.Helper()
		var all []string
		d := r.get(root + "/calls" + query)
		d.each(func(n *html.Node) {
			if n.Data == "tbody" && attr(n, "data-rows") == table {
				for c := n.FirstChild; c != nil; c = c.NextSibling {
					if text := textOf(c); c.Type == html.ElementNode && strings.Contains(text, "nexon/") {
						_, text, _ = strings.Cut(text, "nexon/character/")
						key, _, _ := strings.Cut(text, " ")
						all = append(all, key)
					}
				}
			}
		})
		return all
	}
	for _, test := range []struct{ query, table, want string }{
		{"", "calls", "a1 slow b2 hr.secret"},
		{"", "slowest", "slow a1 b2 hr.secret"},
		{"", "failed", "b2"},
		{"?show=failed", "calls", "b2"},
		{"?show=2xx", "calls", "a1 slow hr.secret"},
		{"?key=s", "calls", "slow"},
		{"?lane=LOW", "calls", ""},
		{"?source=github", "calls", ""},
	} {
		if got := strings.Join(rows(test.query, test.table), " "); got != test.want {
			t.Errorf("%s of %q: got %q, want %q", test.table, test.query, got, test.want)
		}
	}
	if text := r.get(root + "/calls").text(); !strings.Contains(text, "70 more calls are not listed") {
		t.Error("the page does not say that calls were skipped")
	}
}

func TestPages_HaveTheirJSON(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	paths := []string{root + "/lookup?facet=nexon/character&key=a", root + "/dlq/nexon/3/7", root + "/dlq/plan?kind=PURGE", root + "/dlq/jobs/" + r.jobs[0].ID}
	for _, l := range navigation {
		paths = append(paths, l.Path)
	}
	for _, path := range paths {
		d := r.do("GET", path, nil, "Accept", "application/json")
		var object map[string]any
		if err := json.Unmarshal([]byte(d.body), &object); err != nil || d.status != http.StatusOK || len(object) == 0 {
			t.Errorf("%s: got the status %d and %.200q, %v, want an object", path, d.status, d.body, err)
		}
		for name := range object {
			if name[0] >= 'A' && name[0] <= 'Z' {
				t.Errorf("%s: the member %q begins with a capital", path, name)
			}
		}
	}
	r.loginRequired = true
	if d := r.do("GET", root+"/dlq/nexon/3/7", nil, "Accept", "application/json", "Authorization", "Bearer inspect"); d.status == http.StatusOK && strings.Contains(d.body, "schemaVersion") {
		t.Errorf("the JSON of a dead letter contains its record for a client without the scope admin: %.300s", d.body)
	}
}

func TestProblems_LinkToPageRunbookAndAct(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.view = func(source string) limiter.View {
		if source == "github" {
			return backingOffView(0)
		}
		return testView(source, 0)
	}
	d := r.get(root)
	for _, href := range []string{root + "/dlq?source=nexon", root + "/dlq?source=nexon#h-safe", runbookSection("FreshetTooManyDeadLetters"), root + "/limiter#s-github", root + "/settings#s-github", root + "/processes"} {
		if d.linksTo(href) == 0 {
			t.Errorf("the overview has no link to %s", href)
		}
	}
}

func TestJob_ShowsTheOutcomeOfEachReplay(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	began := r.jobs[0].CreatedAt
	r.checkedAt[r.list[0].Entity.Key] = began.Add(time.Second)
	r.failures = map[string]store.Status{r.list[1].Entity.Key: {State: store.Failed, Error: "it failed again", Version: 1, UpdatedAt: began.Add(time.Second)}}
	d := r.get(root + "/dlq/jobs/" + r.jobs[0].ID)
	if got, want := d.textByID("outcomes"), "The first 3 of 4,112 are examined. Of 3 replayed dead letters, 1 succeeded, 1 failed again, and 1 is pending. Update"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !strings.Contains(d.text(), "it failed again") {
		t.Error("the page does not show the error of the last failure")
	}
}

func TestDeadLetter_IsReplayedAlone(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.list = r.list[:1]
	d := r.get(root + "/dlq/nexon/3/120")
	fields := map[string]string{}
	d.each(func(n *html.Node) {
		if n.Data == "input" && attr(n, "type") == "hidden" {
			fields[attr(n, "name")] = attr(n, "value")
		}
	})
	if fields["offset"] != "3:120" || fields["source"] != "nexon" {
		t.Errorf("fields of the form: got %v, want the position 3:120 of nexon", fields)
	}
	r.get(root + "/dlq/plan?source=nexon&offset=3:120&lane=HIGH&kind=REPLAY")
	f := r.filters[len(r.filters)-1]
	if f.Partition == nil || *f.Partition != 3 || f.Offset == nil || *f.Offset != 120 {
		t.Errorf("filter of the dry run: got %+v, want the position 3:120", f)
	}
	r.list[0].Handled = deadletters.Replayed
	if d := r.get(root + "/dlq/nexon/3/120"); !strings.Contains(d.text(), "This dead letter is handled: replayed.") || strings.Contains(d.text(), "Replay this one") {
		t.Error("a handled dead letter can be replayed")
	}
}

func TestDeadLetters_BarsLinkToTheirHour(t *testing.T) {
	r := newRig(t)
	r.hours = []deadletters.Group{
		{First: testNow.Add(-30 * time.Hour).Truncate(time.Hour), Reason: schemas.ParseError, Count: 9},
		{First: testNow.Add(-2 * time.Hour).Truncate(time.Hour), Reason: schemas.ParseError, Count: 1},
		{First: testNow.Add(-2 * time.Hour).Truncate(time.Hour), Reason: schemas.Upstream4xx, Count: 3},
	}
	d := r.get(root + "/dlq?source=nexon")
	for _, reason := range []string{"PARSE_ERROR", "UPSTREAM_4XX"} {
		if n := d.linksTo(root + "/dlq?handled=open&reason=" + reason + "&since=2026-01-27T10%3A00%3A00Z&source=nexon&until=2026-01-27T11%3A00%3A00Z"); n != 1 {
			t.Errorf("bars of %s: got %d, want 1", reason, n)
		}
	}
}

func TestLimiter_ForecastsTheDay(t *testing.T) {
	policy := limiter.PolicyView{Name: "day", Window: "day", Limit: 1000, Used: new(int64(500)), ResetsAt: new(testNow.Add(18 * time.Hour))}
	for name, test := range map[string]struct {
		rate float64
		want string
	}{
		"even pace is faster": {0.005, "500 of 1,000 calls are used, and 18 h remain. An even pace would have used 250. At the rate of the last hour, 176 remain at the end of the day."},
		"used up":             {0.1, "500 of 1,000 calls are used, and 18 h remain. An even pace would have used 250. At the rate of the last hour, they are used up at 13:23."},
		"unknown rate":        {-1, "500 of 1,000 calls are used, and 18 h remain. An even pace would have used 250. At the rate of the last hour, they are used up at 18:00."},
	} {
		got := burnDowns(&limiter.View{Policies: []limiter.PolicyView{policy, {Name: "second", Window: "1s", Limit: 5}}}, test.rate, testNow)
		if len(got) != 1 || got[0].Message != test.want || got[0].Now != "25.0" || got[0].Left != "M0 0 L25.0 50.0" {
			t.Errorf("%s: got %+v, want %q", name, got, test.want)
		}
	}
}

func TestEntityLine_EndsWithKeepFor(t *testing.T) {
	e := Entity{Stored: true, Lifetimes: store.Lifetimes{FreshFor: time.Hour, KeepFor: 10 * time.Hour, NotFoundFor: time.Hour}}
	e.State = store.State{Version: 1, Encoding: "zstd", FetchedAt: testNow.Add(-4 * time.Hour), CheckedAt: testNow.Add(-2 * time.Hour)}
	line := newEntityLine(e, testNow)
	const want = "unchanged since the fetch from 08:00 to 10:00, fresh from 10:00 to 11:00, stale from 11:00 to 18:00, no longer served from 18:00; now it is 12:00:30"
	if line.Text != want || len(line.Parts) != 4 {
		t.Errorf("got %q, want %q", line.Text, want)
	}
	if got := line.Legend[1][1]; got != "fresh until 11:00" {
		t.Errorf("legend: got %q, want fresh until 11:00", got)
	}
	e.State = store.State{Version: 1, NotFound: true, CheckedAt: testNow.Add(-30 * time.Minute)}
	if got := newEntityLine(e, testNow); len(got.Parts) != 2 || got.Legend[0][1] != "not found until 12:30" {
		t.Errorf("not-found result: got %+v, want the part not found first", got)
	}
	if got := newEntityLine(Entity{}, testNow); got != nil {
		t.Errorf("nothing stored: got %+v, want none", got)
	}
}

func TestFieldProblems_FindTheirFields(t *testing.T) {
	err := errors.Join(
		fieldError{"limit.day", errors.New("Limit: \"x\" must be a whole number")},
		errors.New("policies[0] \"second\": highReserve and lowReserve: 100 and 0 reserve all 3 calls; lower one of them"),
		fmt.Errorf("a facet: %w", errors.New("no field")), errors.New("facets.character.hot: 1s is too short"),
	)
	got, want := fieldProblems(err), map[string]string{
		"limit.day":              "Limit: \"x\" must be a whole number.",
		"high.second":            "HighReserve and lowReserve: 100 and 0 reserve all 3 calls; lower one of them.",
		"low.second":             "HighReserve and lowReserve: 100 and 0 reserve all 3 calls; lower one of them.",
		"prefetch.character.hot": "Facets.character.hot: 1s is too short.",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSettings_ShowErrorsAtTheirFields(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	form := url.Values{"revision": {"7"}, "limit.second": {"many"}}
	d := r.open("POST", root+"/settings/nexon", form)
	if got := d.textByID("nexon-limit.second-problem"); d.status != http.StatusBadRequest || got != `Limit: "many" must be a whole number.` {
		t.Errorf("got the status %d and %q at the field, want 400 and the error", d.status, got)
	}
	if n := d.byID("nexon-limit.second"); attr(n, "aria-invalid") != "true" || !strings.Contains(attr(n, "aria-describedby"), "nexon-limit.second-problem") {
		t.Error("the field is not marked as invalid")
	}
}

func TestActivity_NamesTheChangedSettings(t *testing.T) {
	for name, c := range map[string]struct{ action, before, after, want string }{
		"a new override": {"set", `{}`, `{"policies":{"second":{"target":225}}}`, "second.target from the configured value to 225"},
		"another value":  {"set", `{"policies":{"second":{"target":225}}}`, `{"policies":{"second":{"target":300}}}`, "second.target from 225 to 300"},
		"a reset":        {"set", `{"policies":{"second":{"target":225}}}`, `null`, "second.target from 225 to the configured value"},
		"one of several": {"set", `{"policies":{"second":{"target":225}}}`, `{"policies":{"second":{"target":225}},"prefetch":{"off":true}}`, "prefetch.off from the configured value to true"},
		"another action": {"stop", `{}`, `{"stopped":true}`, ""},
		"not an object":  {"set", `{}`, `[1]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := changedSettings(settings.Entry{Action: c.action, Before: json.RawMessage(c.before), After: json.RawMessage(c.after)})
			if got != c.want {
				t.Errorf("changes: got %q, want %q", got, c.want)
			}
		})
	}
}
