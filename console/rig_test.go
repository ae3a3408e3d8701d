package console

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

// then is when everything in the tests happens.
var then = time.Date(2026, 1, 27, 12, 0, 30, 0, time.UTC)

// rig is an installation that says what a test wants.
type rig struct {
	t *testing.T
	*Console
	mu sync.Mutex

	lanes     map[string][]LaneLag
	sched     map[string]ScheduleState
	reads     []ReadStats
	depends   []Dependency
	entity    Entity
	keyWrong  error
	keyWrongs map[string]error // by key
	told      string
	views     map[string]limiter.View
	states    map[string]settings.State
	audit     []settings.Entry
	list      []store.DeadLetter
	groups    []store.DeadLetterGroup
	shown     schemas.DeadLetter
	planned   dlq.Plan
	jobs      []store.DLQJob
	broken    error // of every read
	refusing  error // of every act
	// uncounted is why letters can't be counted. together, unless it is nil, is closed when
	// four reads of letters have begun; until then they wait.
	uncounted error
	together  chan struct{}
	met       atomic.Int32
	asks      bool      // who they are
	expires   time.Time // of a token
	revoked   bool      // whatever token there is
	weather   string
	looks     int
	most      int                              // requests that a client may make; 0: any number
	view      func(source string) limiter.View // instead of views

	// What was done.
	refreshed  []schemas.Entity
	noted      []store.AuditEntry
	orders     []settings.ChangeRequest
	patches    []settings.Patch
	ordered    []dlq.JobSpec
	actors     []string
	filters    []store.DeadLetterFilter
	switched   []store.JobState
	counted    []string // clients that made requests
	identified int
}

func newRig(t *testing.T, changes ...func(*Deps)) *rig {
	r := &rig{t: t, lanes: map[string][]LaneLag{}, sched: map[string]ScheduleState{"github": restingSchedule(), "nexon": theSchedule()}, views: map[string]limiter.View{}, states: map[string]settings.State{}, weather: "fair"}
	for _, source := range []string{"github", "nexon"} {
		r.lanes[source] = []LaneLag{laneOf(schemas.High, 0, 0), laneOf(schemas.Low, 12_480, 35*time.Second)}
		r.states[source] = settings.State{Source: source, Configured: theQuota(), Effective: new(theQuota())}
		r.views[source] = theView(source, 0)
	}
	r.depends = []Dependency{{"Kafka", ""}, {"PostgreSQL", ""}, {"Redis", ""}}
	r.reads = []ReadStats{{"nexon", 9_120_551, 80_211, 3_012, 41, 11 * time.Minute, 52 * time.Minute}}
	deps := Deps{
		Sources: []string{"github", "nexon"}, Facets: map[string][]string{"github": {"repository", "user"}, "nexon": {"character"}},
		Overview: (*fakeNow)(r), Entities: (*fakeKnown)(r), Limits: (*fakeLimits)(r), Schedule: (*fakeSchedule)(r), DLQ: (*fakeLetters)(r), Audit: (*fakeAudit)(r), Guard: (*fakeGuard)(r), Meters: (*fakeMeters)(r),
		Process: "query-1", Version: "v1.2.3", Clock: func() time.Time { return then }, Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&deps)
	}
	if deps.FaultScenarios != nil {
		deps.FaultScenarios = (*fakeWeather)(r)
	}
	r.Console = New(deps)
	return r
}

// laneOf is a lane on which is worked.
func laneOf(l schemas.Lane, records int64, wait time.Duration) LaneLag {
	return LaneLag{Lane: l, Records: records, Wait: wait, RecordsKnown: true, WaitKnown: records > 0}
}

// standing is a lane which no worker has processed for so long.
func standing(l schemas.Lane, records int64, unworked time.Duration) LaneLag {
	return LaneLag{Lane: l, Records: records, RecordsKnown: true, StalledFor: unworked}
}

// weathered gives the rig its weather.
func weathered(n *Deps) { n.FaultScenarios = (*fakeWeather)(nil) }

func readOnly(n *Deps) { n.ReadOnly = true }

// renewed gives the rig a console that has not looked at anything yet.
func renewed(r *rig) *rig {
	r.Console = New(r.Deps)
	return r
}

func theQuota() settings.Values {
	return settings.Values{Policies: []settings.Policy{
		{Name: "second", Window: "1s", Limit: 500, Target: 450, HighReserve: limiter.Reserve{Calls: 100}},
		{Name: "day", Window: "day", TimeZone: "Asia/Seoul", Limit: 20_000_000, HighReserve: limiter.Reserve{Rate: 25}},
	}, LowRateCaps: []limiter.RateCap{{From: 19, To: 23, Rate: 150}}, Prefetch: settings.Prefetch{Enabled: true, Facets: map[string]settings.PrefetchFacet{
		"character": {Mode: "tiers", Hot: hours(1), Warm: hours(6), Cold: hours(24), MinInterval: hours(1) / 2, MaxInterval: hours(168)},
	}}}
}

func hours(n int) settings.Duration { return settings.Duration(time.Duration(n) * time.Hour) }

// theView is a limiter that flows; since is for how long its process has gone on.
func theView(source string, since time.Duration) limiter.View {
	at := then.Add(since)
	return limiter.View{
		Source: source, State: "flowing", At: at, RampRatio: 1, High: limiter.Share{PerSecond: 448}, Low: lowShare(),
		Policies: []limiter.PolicyView{
			{Name: "second", Window: "1s", Limit: 500, Target: 450, Remaining: 138, RemainingForLow: 50},
			{Name: "day", Window: "day", Limit: 20_000_000, Used: new(int64(16_900_000)), Remaining: 3_100_000, RemainingForLow: 2_290_000, ResetsAt: new(then.Add(9*time.Hour - 30*time.Second))},
		},
		Processes: []limiter.ProcessView{{
			Process: "worker-1", At: at, High: limiter.LaneView{Granted: int64(12 * since.Seconds())},
			Low: limiter.LaneView{Waiting: 212, OldestMS: 640, Reason: "the policy second has no room before", Granted: int64(300 * since.Seconds())},
		}},
	}
}
