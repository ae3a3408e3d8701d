package console

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
)

func TestBudgetMessage(t *testing.T) {
	known := rates{12, 300, true}
	day := limiter.PolicyView{Name: "day", Window: "day", Limit: 20_000_000, Used: new(int64(1)), Remaining: 3_100_000, ResetsAt: new(testNow.Add(9 * time.Hour))}
	second := limiter.PolicyView{Name: "second", Window: "1s", Limit: 500, Target: 450}
	minute := limiter.PolicyView{Name: "minute", Window: "1m0s", Limit: 40, Used: new(int64(34)), Remaining: 6}
	until := new(testNow.Add(40 * time.Second))
	for _, c := range []struct {
		want  string
		rates rates
		view  *limiter.View
	}{
		{"The budget of nexon is unknown: the limiter could not be read. Without Redis no calls are made.", known, nil},
		{"nexon has not been called yet; all of its budget is left.", rates{}, &limiter.View{State: limiter.StateUnused}},
		{"nexon uses 312 of 450 calls a second (HIGH 12, LOW 300); 3.1 M of 20 M calls of the day are left for 9 h; nothing blocks calls.", known, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{second, day}}},
		{"nexon uses 312 of 450 calls a second (HIGH 12, LOW 300); 3.1 M of 20 M calls of the day are left for 9 h; nothing blocks calls.", known, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{day, second}}},
		{"nexon may use 450 calls a second; its current rate appears in a few seconds; nothing blocks calls.", rates{}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{second}}},
		{"nexon uses 0.5 calls a second (HIGH 0.5, LOW 0); 6 of 40 calls of the minute are left; nothing blocks calls.", rates{0.5, 0, true}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{minute}}},
		{"nexon is called at the rate that its limits allow; 6 of 40 calls of the minute are left; nothing blocks calls.", rates{}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{minute}}},
		{"nexon uses 720 of 900 calls a minute (HIGH 120, LOW 600); nothing blocks calls.", rates{2, 10, true}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{{Window: "1m0s", Limit: 900}}}},
		{"nexon uses 36,000 of 40,000 calls an hour (HIGH 0, LOW 36,000); nothing blocks calls.", rates{0, 10, true}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{{Window: "1h0m0s", Limit: 40_000}}}},
		{"nexon uses 100 of 100 calls in 10 s (HIGH 0, LOW 100); nothing blocks calls.", rates{0, 10, true}, &limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{{Window: "10s", Limit: 100}}}},
		{"backing off until 12:01:10, because the upstream rejected calls.", known, &limiter.View{State: limiter.StateBackingOff, Until: until}},
		{"the circuit breaker is open, because the upstream is unhealthy; next probe call at 12:01:10.", known, &limiter.View{State: limiter.StateBreakerOpen, Until: until}},
		{"the circuit breaker is half-open: one probe call is in flight.", known, &limiter.View{State: limiter.StateBreakerOpen}},
		{"ramping up after a backoff, at 55 % of its rate.", known, &limiter.View{State: limiter.StateRamping, RampRatio: 0.55}},
		{"stopped by an operator, until it is resumed.", known, &limiter.View{State: limiter.StateStopped}},
		{"calls wait until 12:01:10, because Redis lost the state of the limiter, or its clock was set forward.", known, &limiter.View{State: limiter.StateQuietPeriod, Until: until}},
		{"the remaining calls of the day are not known yet; calls wait until the daily count is restored.", known, &limiter.View{State: limiter.StateRestoringCount, Policies: []limiter.PolicyView{{Window: "day"}}}},
		{"it is of tomorrow.", known, &limiter.View{State: "of tomorrow"}},
		{"nothing blocks calls; 1 scope has an open circuit breaker.", known, &limiter.View{State: limiter.StateFlowing, Scopes: []limiter.ScopeView{{BreakerOpen: true}, {}}}},
		{"nothing blocks calls; 2 scopes have an open circuit breaker.", known, &limiter.View{State: limiter.StateFlowing, Scopes: []limiter.ScopeView{{BreakerOpen: true}, {BreakerOpen: true}}}},
		{"nothing blocks calls; changed limits are not applied yet.", known, &limiter.View{State: limiter.StateFlowing, Revision: 2, NewestRevision: 3}},
	} {
		got := budgetMessage("nexon", c.view, c.rates, testNow)
		if !strings.HasSuffix(got, c.want) || strings.HasPrefix(c.want, "nexon") && got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

func TestWhyStale(t *testing.T) {
	e := schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}
	stored := func(age time.Duration) Entity {
		return Entity{Entity: e, Stored: true, Lifetimes: store.Lifetimes{FreshFor: time.Hour, NotFoundFor: 5 * time.Hour}, State: store.State{Encoding: "zstd", CheckedAt: testNow.Add(-age), FetchedAt: testNow.Add(-age)}}
	}
	const old = "It is stale: checked 3 h ago, and fresh for 1 h. "
	with := func(change func(*Entity)) Entity {
		known := stored(3 * time.Hour)
		change(&known)
		return known
	}
	failed := store.Status{State: store.Retrying, Reason: "UPSTREAM_5XX", UpdatedAt: testNow.Add(-2 * time.Minute), Until: testNow.Add(4 * time.Minute), Failures: 3}
	as := func(s store.StatusState, until time.Duration) Entity {
		return with(func(e *Entity) { e.Status = failed; e.Status.State, e.Status.Until = s, testNow.Add(until) })
	}
	request := func(w RequestState) Entity { return with(func(e *Entity) { e.Request = w }) }
	registered := func(enabled bool, due time.Duration, tier prefetched.Tier) Entity {
		return with(func(e *Entity) {
			e.Registered = &prefetched.RegisteredEntity{Enabled: enabled, Due: testNow.Add(due), Tier: tier}
		})
	}
	later := testNow.Add(10 * time.Minute)
	for _, c := range []struct {
		entity Entity
		want   string
	}{
		{Entity{Entity: e}, "Nothing is stored. No request of the last hour is open. It is not prefetched; the next read requests it."},
		{stored(10 * time.Minute), "It is not stale. Checked 10 min ago, and fresh for 1 h, until 12:50. It is not prefetched: the first read after this time requests it."},
		{stored(3 * time.Hour), old + "No request of the last hour is open. It is not prefetched; the next read requests it."},
		{with(func(e *Entity) { e.State.NotFound, e.State.Encoding = true, "" }), "The upstream reported 3 h ago that the entity does not exist; this result is valid for 5 h, until 14:00. It is not prefetched: the first"},
		{with(func(e *Entity) { e.State.NotFound, e.NotFoundFor = true, 2*time.Hour }), "The upstream reported 3 h ago that the entity does not exist; that result was valid for 2 h. No request of the last hour is open."},
		{with(func(e *Entity) { e.State.Encoding = "" }), "Nothing is stored. No request of the last hour is open."},
		{with(func(e *Entity) { e.KeepFor, e.State.CheckedAt = 3*time.Hour, testNow.Add(-time.Minute) }), "Its content was fetched 3 h ago and kept for 3 h, which is over: it is no longer served, and readers wait for a new fetch. Checked 1 min ago. No request of the last hour is open."},
		{with(func(e *Entity) { e.KeepFor = 4 * time.Hour }), old + "No request of the last hour is open."},
		{with(func(e *Entity) {
			e.Aliases = []Alias{{
				Param: "ocid", From: "id", Value: "o1", Stored: true, Lifetimes: store.Lifetimes{FreshFor: 5 * time.Hour},
				State: store.State{Encoding: "zstd", CheckedAt: testNow.Add(-time.Hour), UpdatedAt: testNow.Add(-2 * time.Hour)},
			}}
		}), old + "a → {ocid} = o1, from facet id, checked 1 h ago, changed 2 h ago; the next check of the value is at 16:00 or later."},
		{with(func(e *Entity) { e.Aliases = []Alias{{Param: "ocid", From: "id"}} }), old + "a → {ocid}: facet id, which has the value, was never fetched."},
		{with(func(e *Entity) {
			e.Aliases = []Alias{{
				Param: "ocid", From: "id", Stored: true, Lifetimes: store.Lifetimes{NotFoundFor: 2 * time.Hour},
				State: store.State{NotFound: true, CheckedAt: testNow.Add(-time.Hour)},
			}}
		}), old + "a → {ocid}: facet id was checked 1 h ago and not found; the next check of this facet is at 13:00 or later."},
		{with(func(e *Entity) {
			e.Status = failed
			e.Status.Reason, e.Status.Error = schemas.HoldAlias, "waits for facet id"
		}), old + "It waits for facet id, since 11:58; it is fetched afterwards, and at 12:04 at the latest."},
		{as(store.Retrying, 4*time.Minute), old + "It is held: its last request failed 2 min ago (UPSTREAM_5XX), and the next retry is at 12:04."},
		{as(store.Retrying, -3*time.Minute), old + "It is held: its last request failed 2 min ago (UPSTREAM_5XX), and a retry has been due since 11:57."},
		{as(store.Failed, 6*time.Hour), old + "Its request failed permanently 2 min ago (UPSTREAM_5XX) and is a dead letter. Until 18:00 only a manual refresh requests it."},
		{as(store.Failed, -time.Minute), old + "Its request failed permanently 2 min ago (UPSTREAM_5XX) and is a dead letter; the hold has ended, so the next read requests it again. No request"},
		{as(store.Suspended, 0), old + "It is suspended: its requests failed permanently 3 times in a row, last 2 min ago (UPSTREAM_5XX). Only a manual refresh or a replay requests it again."},
		{request(RequestState{Unknown: true}), old + "It is unknown whether a request is in flight, because Redis does not answer."},
		{request(RequestState{Lane: schemas.High, Number: 4, Issued: 5, Confirmed: true}), old + "A fetch that was requested in the HIGH lane is running."},
		{request(RequestState{Lane: schemas.Low, Number: 5, Issued: 5}), old + "A request in the LOW lane is being published to Kafka."},
		{request(RequestState{Lane: schemas.Low, Number: 5, Issued: 5, Confirmed: true}), old + "A request waits in the LOW lane, after at most 900 other records, which the workers process in about 7 min."},
		{request(RequestState{Lane: schemas.High, Number: 5, Confirmed: true, Until: later}), old + "A request waits in the HIGH lane; if the request is lost, the entity can be requested again after 12:10."},
		{request(RequestState{Issued: testNow.Add(-52 * time.Minute).UnixMilli()}), old + "It was requested at about 11:08, and the request has not ended: it waits in the topic of its lane, or was lost. The next read of stale content requests the entity again."},
		{with(func(e *Entity) { e.Request, e.Status = RequestState{Issued: 10}, failed; e.Status.Version = 9 }), old + "It is held: its last request failed 2 min ago (UPSTREAM_5XX), and the next retry is at 12:04. It was requested, and the request has not ended: it waits in the topic of its lane, or was lost."},
		{request(RequestState{Issued: 5}), old + "It was requested, and the request has not ended"},
		{request(RequestState{Issued: 5, Done: 5}), old + "No request of the last hour is open."}, // request 5 was satisfied, so the text must not report it as lost, although no snapshot has version 5
		{with(func(e *Entity) { e.Request.Issued, e.State.Version = 5, 5 }), old + "No request of the last hour is open."},
		{with(func(e *Entity) { e.Request.Issued, e.Status.Version = 5, 5 }), old + "No request of the last hour is open."},
		{request(RequestState{Hold: schemas.HoldNotFound, HoldUntil: later}), old + "It is held until 12:10, because the upstream reported that it does not exist."},
		{request(RequestState{Hold: schemas.HoldRetrying, HoldUntil: later}), old + "It is held until 12:10, because its last request failed and a retry is scheduled."},
		{request(RequestState{Hold: schemas.HoldFailed, HoldUntil: later}), old + "It is held until 12:10 (FAILED)."},
		{request(RequestState{Hold: schemas.HoldFailed, HoldUntil: testNow}), old + "No request of the last hour is open."},
		{request(RequestState{CooldownUntil: testNow.Add(9 * time.Second)}), old + "It was refreshed manually a moment ago; the next manual refresh is possible at 12:00:39. No request"},
		{registered(false, 0, prefetched.Hot), old + "It is registered but disabled: the next read of stale content requests it."},
		{registered(true, 10*time.Minute, prefetched.Warm), old + "It is prefetched (warm) and due at 12:10; a read of stale content requests it sooner."},
		{registered(true, -10*time.Minute, prefetched.Cold), old + "It is prefetched (cold) and has been due since 11:50: the scheduler waits for budget, or is behind."},
	} {
		a := surroundings{limits: &limiter.View{State: limiter.StateFlowing}, lanes: []LaneLag{testLane(schemas.High, 0, 0), testLane(schemas.Low, 900, 7*time.Minute)}}
		if got := whyStale(c.entity, a, testNow); !strings.HasPrefix(got, c.want) {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
	stopped := whyStale(stored(3*time.Hour), surroundings{limits: &limiter.View{State: limiter.StateStopped}}, testNow)
	if !strings.Contains(stopped, "nexon is not called: stopped by an operator, until it is resumed.") {
		t.Errorf("got %s, want %q in it", stopped, "nexon is not called: stopped by an operator, until it is resumed.")
	}
}

func TestDeadLettersMessage(t *testing.T) {
	since := testNow.Add(-day)
	one := deadLetterGroup{Source: "nexon", Group: deadletters.Group{Reason: schemas.Upstream5xx, Count: 1, Last: testNow.Add(-time.Hour)}}
	many := deadLetterGroup{Source: "github", Group: deadletters.Group{Reason: schemas.ParseError, Count: 1_204, Last: testNow.Add(-2 * time.Minute)}}
	for _, c := range []struct {
		all  []deadLetterGroup
		want string
	}{
		{nil, "No dead letters since yesterday 12:00."},
		{[]deadLetterGroup{one}, "1 dead letter since yesterday 12:00, with 1 cause. The newest dead letter was written 1 h ago."},
		{[]deadLetterGroup{one, many}, "1,205 dead letters since yesterday 12:00, with 2 causes. The newest dead letter was written 2 min ago. The most frequent cause is PARSE_ERROR of github, with 1,204 dead letters."},
	} {
		if got := deadLettersMessage(c.all, since, testNow); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestExplainReason_CoversEveryReason(t *testing.T) {
	faults, err := os.ReadFile("../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range schemas.DeadLetterReasons {
		if !strings.Contains(string(faults), "\n| `"+string(r)+"` | ") {
			t.Errorf("docs/faults.md: got no row for %s, want one", r)
		}
		if explanations[r] == "" {
			t.Errorf("explanation of %s: got none, want one", r)
		}
	}
	if explainReason("X") != "This release does not know this reason." {
		t.Error(explainReason("X"))
	}
}

func TestFormat_TimesAndNumbers(t *testing.T) {
	for want, got := range map[string]string{
		"0 s": formatDuration(0), "120 ms": formatDuration(120 * time.Millisecond), "59 s": formatDuration(59*time.Second + 900*time.Millisecond), "12 min": formatDuration(12 * time.Minute), "3 h 20 min": formatDuration(3*time.Hour + 20*time.Minute),
		"26 h": formatDuration(26*time.Hour + 5*time.Minute), "9 days": formatDuration(9 * day), "5 s": formatDuration(-5 * time.Second), "just now": formatAgo(testNow, testNow), "2 min ago": formatAgo(testNow.Add(-2*time.Minute), testNow),
		"12:00:31": formatTime(testNow.Add(time.Second), testNow), "14:00": formatTime(testNow.Add(2*time.Hour), testNow), "29 Jan 12:00": formatTime(testNow.Add(2*day), testNow), "27 Jan 2025": formatTime(testNow.Add(-365*day), testNow),
		"1 M": formatCount(1_000_000), "999,999": formatCount(999_999), "12": status.FormatInt(12), "-1,234,567": status.FormatInt(-1_234_567), "-123": status.FormatInt(-123), "1 record": plural(1, "record", "records"), "0 records": plural(0, "record", "records"),
		"9.9": formatRate(9.94), "10": formatRate(9.96), "0": formatRate(0), "< 0.1 %": formatPercent(1, 10_000), "100 %": formatPercent(3, 3), "> 99.9 %": formatPercent(99_999, 100_000), "": formatPercent(0, 0), "33.3 %": formatPercent(1, 3),
	} {
		if got != want {
			t.Errorf("formatted value: got %q, want %q", got, want)
		}
	}
}

func TestDisplayText_CutsAndNeutralizes(t *testing.T) {
	got := displayText("a\u202eb\x00c\u2066\xffé\n"+strings.Repeat("ä", 400), 300)
	if !strings.HasPrefix(got, "a\uFFFDb\uFFFDc\uFFFD\uFFFDé\n") || len(got) > 320 || !strings.HasSuffix(got, "ä …") {
		t.Errorf("long text: got %q, want at most 320 bytes, unsafe characters replaced, and an ellipsis at the end", got)
	}
	if slices.Contains([]rune(displayText("🙂🙂", 5)), '\uFFFD') || displayText("abc", 3) != "abc" {
		t.Errorf("short texts: got %q and %q, want no broken character, and abc", displayText("🙂🙂", 5), displayText("abc", 3))
	}
}
