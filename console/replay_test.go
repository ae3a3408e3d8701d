package console

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func TestSafeToReplay(t *testing.T) {
	long := testNow.Add(-3 * time.Hour)
	passing := store.DeadLetterGroup{Reason: schemas.Upstream5xx, Count: 40, Last: long}
	lasting := store.DeadLetterGroup{Reason: schemas.ParseError, Count: 60, Last: long}
	group := func(g store.DeadLetterGroup, change func(*store.DeadLetterGroup)) []store.DeadLetterGroup {
		change(&g)
		return []store.DeadLetterGroup{g}
	}
	well := []LaneLag{testLane(schemas.Low, 5, time.Minute)}
	flowing := &limiter.View{State: limiter.StateFlowing}
	none := func(*store.DeadLetterGroup) {}
	for _, c := range []struct {
		groups []store.DeadLetterGroup
		limits *limiter.View
		lanes  []LaneLag
		want   string
	}{
		{nil, flowing, well, "No: no open dead letter matches the filter."},
		{group(passing, none), flowing, well, "Yes: nexon is flowing, the newest one failed 3 h ago, and the cause may be resolved."},
		{group(passing, none), nil, well, "No: the state of the limiter of nexon is unknown, because it could not be read."},
		{group(passing, none), &limiter.View{State: limiter.StateStopped}, well, "No: nexon is not called now: stopped by an operator, until it is resumed."},
		{group(passing, none), &limiter.View{State: limiter.StateResuming}, well, "Not yet: nexon is not called now: a resume is set; all processes apply it within two seconds."},
		{group(passing, none), &limiter.View{State: limiter.StateBackingOff, Until: new(testNow.Add(30 * time.Second))}, well, "No: nexon is not called now: backing off until 12:01:00, because the upstream rejected calls."},
		{group(passing, none), &limiter.View{State: limiter.StateBreakerOpen}, well, "No: nexon is not called now: the circuit breaker is half-open: one probe call is in flight."},
		{group(passing, none), &limiter.View{State: limiter.StateRestoringCount}, well, "No: nexon is not called now: calls wait until the daily count is restored."},
		{group(passing, none), &limiter.View{State: limiter.StateQuietPeriod, Until: new(testNow.Add(time.Second))}, well, "Not yet: nexon is not called now: calls wait until 12:00:31, because the limiter's state was lost."},
		{group(passing, none), &limiter.View{State: limiter.StateRamping}, well, "Yes: nexon is ramping, the"},
		{group(passing, func(g *store.DeadLetterGroup) { g.Last = testNow.Add(-9 * time.Minute) }), flowing, well, "Not yet: the newest one failed 9 min ago; wait until none has failed for 10 min."},
		{group(lasting, none), flowing, well, "No: 60 of PARSE_ERROR would fail again unless this is done first: fix the extraction of the response."},
		{group(lasting, func(g *store.DeadLetterGroup) { g.Reason = "NEW" }), flowing, well, "No: 60 of NEW would fail again unless this is done first: check the error."},
		{group(passing, func(g *store.DeadLetterGroup) {
			g.AtReplayLimit, g.Totals = 40, store.DeadLetterCount{All: 47, AtReplayLimit: 41}
		}), flowing, well, "Not yet: 7 of them belong to further groups, which were not judged; select fewer. 41 of them were replayed 3 times already"},
		{group(passing, func(g *store.DeadLetterGroup) { g.Totals.All = 40 }), flowing, well, "Yes: nexon is flowing"},
		{[]store.DeadLetterGroup{passing, lasting, lasting}, flowing, well, "Not yet: 120 of PARSE_ERROR would fail again unless this is done first: fix the extraction of the response. The others can be replayed separately, with a filter on their reason."},
		{group(passing, func(g *store.DeadLetterGroup) { g.AtReplayLimit = 40 }), flowing, well, "No: all of them were replayed 3 times already, the maximum, and stay open."},
		{group(passing, func(g *store.DeadLetterGroup) { g.AtReplayLimit = 2 }), flowing, well, "Yes: 2 of them were replayed 3 times already and would stay open. nexon is flowing"},
		{group(passing, none), flowing, []LaneLag{testLane(schemas.Low, 90_000, 12*time.Minute)}, "Not yet: the LOW lane is 12 min behind; a replay would wait behind that and increase it."},
		{group(passing, none), flowing, []LaneLag{{Lane: schemas.Low}, testLane(schemas.High, 1, time.Hour)}, "Not yet: the lag of the LOW lane is unknown"},
		{group(passing, none), flowing, []LaneLag{stalledLane(schemas.Low, 90_000, time.Minute)}, "Not yet: no worker has worked for 1 min on the 90,000 records in the LOW lane, behind which a replay would wait: no worker is running."},
		{group(passing, none), flowing, []LaneLag{stalledLane(schemas.Low, 1, time.Second)}, "Not yet: how long the 1 record in the LOW lane takes is not known yet"},
		{group(passing, none), flowing, []LaneLag{testLane(schemas.Low, 0, 0), testLane(schemas.High, 1, time.Hour)}, "Yes: "},
		{group(passing, none), flowing, nil, "Not yet: the lag of the LOW lane is unknown."},
	} {
		if got := safeToReplay(replay{source: "nexon", groups: c.groups, lane: schemas.Low, count: -1, limits: c.limits, lanes: c.lanes}, testNow).String(); !strings.HasPrefix(got, c.want) {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
	worst := safeToReplay(replay{source: "nexon", groups: group(lasting, func(g *store.DeadLetterGroup) { g.Last = testNow }), lane: schemas.Low, count: -1, lanes: well}, testNow)
	if worst.Answer != verdictNo || len(worst.Reasons) != 3 {
		t.Errorf("verdict: got %+v, want %s with 3 reasons", worst, verdictNo)
	}
}

func TestSafeToReplay_ConsidersLaneRateAndJobs(t *testing.T) {
	day := limiter.PolicyView{Name: "day", Window: "day", Limit: 20_000, Used: new(int64(15_000)), Remaining: 5_000, RemainingForLow: 300, ResetsAt: new(testNow.Add(9 * time.Hour))}
	running := store.DLQJob{Source: "nexon", Kind: store.ReplayJob, State: store.JobRunning, Total: 1_000, Done: 400}
	halt := limiter.ScopeView{Policy: "endpoint", Scope: "read", BreakerOpen: true}
	for _, c := range []struct {
		change func(r *replay, v *limiter.View)
		want   string
	}{
		{func(*replay, *limiter.View) {}, "Yes: nexon is flowing"},
		{func(_ *replay, v *limiter.View) { v.Policies[0].RemainingForLow = 99 }, "Not yet: it takes 100 calls of the day at least, and LOW has 99 of them until 21:00; select fewer, or set a rate."},
		{func(r *replay, v *limiter.View) { v.Policies[0].RemainingForLow, r.rate = 99, 0.003 }, "Yes: "}, // the replay must be safe: at 0.003 dead letters a second only 97 are replayed until the daily reset, and LOW has 99 calls left
		{func(r *replay, v *limiter.View) { v.Policies[0].RemainingForLow, r.count = 99, 98 }, "Yes: "},
		{func(r *replay, v *limiter.View) { v.Policies[0].RemainingForLow, r.lane = 99, schemas.High }, "Yes: "},
		{func(_ *replay, v *limiter.View) { v.Policies[0].RemainingForLow = 0 }, "Not yet: its requests would wait: LOW has used up its share of the day"},
		{func(_ *replay, v *limiter.View) { v.Policies[0].Remaining, v.Policies[0].RemainingForLow = 0, 0 }, "No: nexon is not called now: all 20,000 calls of the day are used up; it resets at 21:00."},
		{func(_ *replay, v *limiter.View) { v.Scopes = []limiter.ScopeView{halt} }, "Not yet: requests that need a blocked scope of nexon would wait: 1 scope has an open circuit breaker: endpoint of read."},
		{func(r *replay, _ *limiter.View) { r.count = 0 }, "No: none of them would be replayed: all stay open."},
		{func(r *replay, _ *limiter.View) { r.jobs = []store.DLQJob{running} }, "No: a replay of nexon is running, with 400 of 1,000 done; a new one can start only after it ends or is stopped."},
		{func(r *replay, _ *limiter.View) {
			purge, ended, other := running, running, running
			purge.Kind, ended.State, other.Source = store.PurgeJob, store.JobDone, "github"
			r.jobs = []store.DLQJob{purge, ended, other}
		}, "Yes: "},
		{func(r *replay, _ *limiter.View) {
			stopped := running
			stopped.State, stopped.ChunkStartedAt = store.JobStopped, testNow
			r.jobs = []store.DLQJob{stopped}
		}, "Not yet: a replay of nexon was stopped, and its last chunk is still being checked; a new one can start only after that."},
		{func(r *replay, _ *limiter.View) {
			stopped := running
			stopped.State = store.JobStopped
			r.jobs = []store.DLQJob{stopped}
		}, "Yes: "},
		{func(r *replay, _ *limiter.View) { r.jobsUnknown = true }, "Not yet: whether another replay of nexon is running is unknown"},
		{func(r *replay, _ *limiter.View) { r.lanes[1] = testLane(schemas.Low, 9, time.Hour) }, "Not yet: the LOW lane is 1 h behind"},
		{func(r *replay, _ *limiter.View) {
			r.lanes[1], r.lane = testLane(schemas.Low, 9, time.Hour), schemas.High
		}, "Yes: "},
		{func(r *replay, _ *limiter.View) {
			r.lanes[0], r.lane = testLane(schemas.High, 9, 2*time.Minute), schemas.High
		}, "Not yet: the HIGH lane is 2 min behind"},
		{func(r *replay, _ *limiter.View) { r.lane, r.count = schemas.High, 101 }, "Not yet: 101 dead letters would go to the HIGH lane at once, ahead of requests that readers wait for; choose LOW, or a rate."},
		{func(r *replay, _ *limiter.View) { r.lane, r.count, r.rate = schemas.High, 101, 1 }, "Yes: "},
	} {
		v := limiter.View{State: limiter.StateFlowing, Policies: []limiter.PolicyView{day}}
		r := replay{
			source: "nexon", groups: []store.DeadLetterGroup{{Reason: schemas.Upstream5xx, Count: 102, AtReplayLimit: 2, Last: testNow.Add(-time.Hour)}}, lane: schemas.Low, count: -1, limits: &v,
			lanes: []LaneLag{testLane(schemas.High, 0, 0), testLane(schemas.Low, 5, time.Minute)},
		}
		c.change(&r, &v)
		got := safeToReplay(r, testNow).String()
		if got = strings.Replace(got, "2 of them were replayed 3 times already and would stay open. ", "", 1); !strings.HasPrefix(got, c.want) {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
}

func TestSafeToReplay_RecoversPanic(t *testing.T) {
	r := newRig(t)
	r.groups = []store.DeadLetterGroup{{Reason: schemas.Upstream5xx, Count: 3, Last: testNow.Add(-time.Hour)}}
	r.view = func(string) limiter.View { panic("a bug") }
	if got := r.get(root + "/dlq?source=nexon").textByID("safe-to-replay"); !strings.HasPrefix(got, "No: the state of the limiter of nexon is unknown") {
		t.Errorf("got %q, want the prefix %q", got, "No: the state of the limiter of nexon is unknown")
	}
}

func TestPlan_JudgesItsOwnOrder(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.jobs = nil
	r.groups = []store.DeadLetterGroup{{Reason: schemas.Upstream5xx, Count: 12_268, Last: testNow.Add(-time.Hour)}}
	r.lanes["nexon"] = []LaneLag{testLane(schemas.High, 9, 2*time.Minute), testLane(schemas.Low, 5, time.Minute)}
	for lane, want := range map[string]string{"LOW": verdictYes, "HIGH": verdictNotYet} {
		d := r.get(root + "/dlq/plan?source=nexon&kind=REPLAY&rate=10&lane=" + lane)
		if got := attr(d.byID("safe-to-replay"), "data-answer"); got != want {
			t.Errorf("verdict for the lane %s: got %s (%s), want %s", lane, got, d.textByID("safe-to-replay"), want)
		}
	}
	r.planned.Count = 0
	if !strings.Contains(r.get(root+"/dlq/plan?source=nexon&kind=REPLAY&lane=LOW").textByID("safe-to-replay"), "none of them would be replayed") {
		t.Error("safe-to-replay: got an answer that ignores the count of the plan")
	}
}
