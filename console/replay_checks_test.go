package console

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// wantCheck compares a check with the wanted result and message.
func wantCheck(t *testing.T, got replayCheck, result checkResult, message string) {
	t.Helper()
	if got.Result != result || got.Message != message {
		t.Errorf("%s: got %s, %q, want %s, %q", got.Name, got.Result, got.Message, result, message)
	}
}

func TestReplayCheck_SourceHealthy(t *testing.T) {
	for name, c := range map[string]struct {
		limits  *limiter.View
		result  checkResult
		message string
	}{
		"unread":    {nil, checkUnknown, "The limiter of nexon could not be read."},
		"flowing":   {&limiter.View{State: limiter.StateFlowing, RampRatio: 1}, checkYes, "The limiter of nexon is flowing, at 100 % of its rate."},
		"ramping":   {&limiter.View{State: limiter.StateRamping, RampRatio: 0.625}, checkYes, "The limiter of nexon is ramping, at 62 % of its rate."},
		"stopped":   {&limiter.View{State: limiter.StateStopped}, checkNo, "nexon is not called now: stopped by an operator, until it is resumed."},
		"resuming":  {&limiter.View{State: limiter.StateResuming}, checkNo, "nexon is not called now: a resume is set; all processes apply it within two seconds."},
		"backoff":   {&limiter.View{State: limiter.StateBackingOff, Until: new(testNow.Add(30 * time.Second))}, checkNo, "nexon is not called now: backing off until 12:01:00, because the upstream rejected calls."},
		"half-open": {&limiter.View{State: limiter.StateBreakerOpen}, checkNo, "nexon is not called now: the circuit breaker is half-open: one probe call is in flight."},
		"scope":     {&limiter.View{State: limiter.StateFlowing, Scopes: []limiter.ScopeView{{Policy: "endpoint", Scope: "read", BreakerOpen: true}}}, checkNo, "1 scope has an open circuit breaker: endpoint of read."},
	} {
		t.Run(name, func(t *testing.T) {
			wantCheck(t, checkHealth("nexon", c.limits, testNow), c.result, c.message)
		})
	}
}

func TestReplayCheck_BudgetLeft(t *testing.T) {
	day := limiter.PolicyView{Name: "day", Window: "day", Limit: 20_000, Used: new(int64(15_000)), Remaining: 5_000, RemainingForLow: 300, ResetsAt: new(testNow.Add(9 * time.Hour))}
	hour := limiter.PolicyView{Name: "hour", Window: "1h0m0s", Limit: 900, Used: new(int64(700)), Remaining: 200, RemainingForLow: 100}
	second := limiter.PolicyView{Name: "second", Window: "1s", Limit: 500}
	uncounted := limiter.PolicyView{Name: "day", Window: "day", Limit: 20_000}
	view := func(all ...limiter.PolicyView) *limiter.View {
		return &limiter.View{State: limiter.StateFlowing, Policies: all}
	}
	noneLeft := &limiter.View{State: limiter.StateFlowing, Scopes: []limiter.ScopeView{{Policy: "core", Scope: "token-b", Remaining: new(int64(0)), Until: new(testNow.Add(12 * time.Minute))}}}
	for name, c := range map[string]struct {
		limits  *limiter.View
		lane    schemas.Lane
		count   int64
		result  checkResult
		message string
	}{
		"unread":     {nil, schemas.Low, 1, checkUnknown, "The limiter of nexon could not be read."},
		"enough":     {view(second, day), schemas.Low, 300, checkYes, "LOW has 300 of 20,000 calls of the day left until 21:00; the replay needs 300 calls at least."},
		"too few":    {view(second, day), schemas.Low, 301, checkNo, "LOW has 300 of 20,000 calls of the day left until 21:00; the replay needs 301 calls at least."},
		"high lane":  {view(second, day), schemas.High, 301, checkYes, "HIGH has 5,000 of 20,000 calls of the day left until 21:00; the replay needs 301 calls at least."},
		"fewest":     {view(day, hour), schemas.Low, 101, checkNo, "LOW has 100 of 900 calls of the hour left; the replay needs 101 calls at least."},
		"used up":    {view(limiter.PolicyView{Window: "day", Limit: 9, Used: new(int64(9))}), schemas.Low, 0, checkNo, "LOW has 0 of 9 calls of the day left; the replay needs 0 calls at least."},
		"uncounted":  {view(uncounted), schemas.Low, 1, checkUnknown, "The used calls of the day are not known yet; the replay needs 1 call at least."},
		"short only": {view(second), schemas.Low, 1, checkYes, "nexon has no limit for an hour or longer; the replay needs 1 call at least."},
		"scope":      {noneLeft, schemas.Low, 1, checkNo, "1 scope has no calls left: core of token-b until 12:12."},
	} {
		t.Run(name, func(t *testing.T) {
			wantCheck(t, checkBudget("nexon", c.limits, c.lane, c.count, testNow), c.result, c.message)
		})
	}
}

func TestReplayCheck_CauseFixedSince(t *testing.T) {
	failed := []deadletters.DeadLetter{{At: testNow.Add(-6 * time.Minute)}, {At: testNow.Add(-time.Hour)}}
	checked := func(ago ...time.Duration) (all []store.State) {
		for _, d := range ago {
			all = append(all, store.State{CheckedAt: testNow.Add(-d)})
		}
		return all
	}
	for name, c := range map[string]struct {
		newest  []deadletters.DeadLetter
		states  []store.State
		err     error
		result  checkResult
		message string
	}{
		"unread":  {nil, nil, errBroken, checkUnknown, "The failed entities could not be read."},
		"none":    {nil, nil, nil, checkUnknown, "No open dead letter of a known entity matches the filter."},
		"fetched": {failed, checked(time.Hour, 5*time.Minute), nil, checkYes, "A later fetch has succeeded for 1 of the 2 newest dead letters; the newest fetch was 5 min ago."},
		"before":  {failed, checked(6*time.Minute, 2*time.Hour), nil, checkUnknown, "Not tested: no fetch has succeeded after the failures of the 2 newest dead letters; the newest failure was 6 min ago. Refresh the entity of a dead letter to test whether the cause is fixed."},
		"never":   {failed[:1], make([]store.State, 1), nil, checkUnknown, "Not tested: no fetch has succeeded after the failure of the newest dead letter; the newest failure was 6 min ago. Refresh the entity of a dead letter to test whether the cause is fixed."},
	} {
		t.Run(name, func(t *testing.T) {
			wantCheck(t, checkCause(c.newest, c.states, c.err, testNow), c.result, c.message)
		})
	}
}

func TestReplayCheck_NoRunningJob(t *testing.T) {
	running := deadletters.Job{Source: "nexon", Kind: deadletters.ReplayJob, State: deadletters.JobRunning, Total: 1_000, Done: 400}
	purge, ended, other, stopped, unfinished := running, running, running, running, running
	purge.Kind, ended.State, other.Source, stopped.State = deadletters.PurgeJob, deadletters.JobDone, "github", deadletters.JobStopped
	unfinished.State, unfinished.ChunkStartedAt = deadletters.JobStopped, testNow
	for name, c := range map[string]struct {
		jobs    []deadletters.Job
		err     error
		result  checkResult
		message string
	}{
		"unread":     {nil, errBroken, checkUnknown, "The jobs could not be read."},
		"running":    {[]deadletters.Job{running}, nil, checkNo, "A replay of nexon is running, with 400 of 1,000 done."},
		"unfinished": {[]deadletters.Job{unfinished}, nil, checkNo, "A replay of nexon was stopped at 400 of 1,000, and its last chunk is still being checked."},
		"others":     {[]deadletters.Job{purge, ended, other, stopped}, nil, checkYes, "No replay of nexon is running."},
	} {
		t.Run(name, func(t *testing.T) {
			wantCheck(t, checkJobs("nexon", c.jobs, c.err), c.result, c.message)
		})
	}
}

func TestReplayChecks_RecoverPanic(t *testing.T) {
	r := newRig(t)
	r.groups = []deadletters.Group{{Reason: schemas.Upstream4xx, Count: 1}}
	r.view = func(string) limiter.View { panic("a bug") }
	if got, want := r.get(root+"/dlq?source=nexon").textByID("safe-to-replay"), "unknown The limiter of nexon could not be read."; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q in it", got, want)
	}
}

func TestReplayChecks_CountOnlyVisibleEntities(t *testing.T) {
	r := newRig(t)
	r.list = []deadletters.DeadLetter{
		{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}, At: testNow.Add(-time.Hour)},
		{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: "hr.b"}, At: testNow.Add(-time.Minute)},
		{At: testNow}, // a dead letter whose record could not be decoded
	}
	checks := newDLQPages(r.Console).replayChecks(t.Context(), access.Client{Scopes: []access.Scope{access.Inspect}}, deadletters.Filter{Source: "nexon"}, schemas.Low, 3)
	wantCheck(t, checks[2], checkUnknown, "Not tested: no fetch has succeeded after the failure of the newest dead letter; the newest failure was 1 h ago. Refresh the entity of a dead letter to test whether the cause is fixed.")
}

func TestPlan_ChecksItsOwnLaneAndCount(t *testing.T) {
	r := newRig(t)
	fillRig(r)
	r.planned.Count = 3_000_000
	for lane, want := range map[string]string{
		"LOW":  "no LOW has 2.3 M of 20 M calls of the day left until 21:00; the replay needs 3,000,000 calls at least.",
		"HIGH": "yes HIGH has 3.1 M of 20 M calls of the day left until 21:00; the replay needs 3,000,000 calls at least.",
	} {
		if got := r.get(root + "/dlq/plan?source=nexon&kind=REPLAY&lane=" + lane).textByID("safe-to-replay"); !strings.Contains(got, want) {
			t.Errorf("checks of a replay into %s: got %q, want %q in it", lane, got, want)
		}
	}
}
