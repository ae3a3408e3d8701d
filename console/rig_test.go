package console

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/runs/api"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/clients"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// testNow is the time of the clock in all tests whose clock does not run.
var testNow = time.Date(2026, 1, 27, 12, 0, 30, 0, time.UTC)

// rig is a console with fake dependencies. A test sets the fields that the fakes return.
type rig struct {
	t *testing.T
	*Console
	mu sync.Mutex

	lanes         map[string][]LaneLag
	sched         map[string]status.Schedule
	reads         []status.ReadStats
	dependencies  []Dependency
	entity        Entity
	running       []status.Process // processes that have reported
	upstreamCalls status.Calls
	found         find.ItemPage
	collection    collection.State
	items         []collection.Item
	entityAges    map[string]find.Ages
	accounts      clients.List
	shareList     clients.Shares
	account       clients.Client
	clientQueries []string // names of clients whose credits were read
	runPage       api.Page
	run           api.Details
	runChanges    []string // calls of Cancel and Retry
	findErr       error
	queries       []find.ItemQuery // recorded queries of items
	listings      []collection.Listing
	keyError      error
	keyErrors     map[string]error // errors that CheckKey returns, by key
	message       string
	views         map[string]limiter.View
	states        map[string]settings.State
	audit         []settings.Entry
	list          []deadletters.DeadLetter
	groups        []deadletters.Group
	hours         []deadletters.Group
	failures      map[string]store.Status // failures of entities, by key
	shown         schemas.DeadLetter
	planned       dlq.Plan
	jobs          []deadletters.Job
	checkedAt     map[string]time.Time // times of the last fetches of entities, by key
	readErr       error                // error of all reads; nil: the reads succeed
	actionErr     error                // error of all actions; nil: the actions succeed
	// countErr is the error of each count of dead letters. If `barrier` is not nil, each read
	// of dead letters waits until four reads have begun; then `barrier` is closed.
	countErr      error
	barrier       chan struct{}
	arrived       atomic.Int32
	loginRequired bool
	expires       time.Time // time at which tokens expire
	revoked       bool      // true if all tokens are rejected
	scenario      string
	viewCalls     int
	requestLimit  int                              // maximum number of requests of a client; 0: unlimited
	view          func(source string) limiter.View // if not nil, the fake calls this function and does not read the field `views`

	// The actions that the fakes have recorded.
	refreshed    []schemas.Entity
	auditEntries []store.AuditEntry
	orders       []settings.ChangeRequest
	patches      []settings.Patch
	ordered      []dlq.JobSpec
	actors       []string
	filters      []deadletters.Filter
	switched     []deadletters.JobState
	counted      []string // for each request that the rate limiter has counted: the name of the client
	identified   int
}

func newRig(t *testing.T, changes ...func(*Deps)) *rig {
	r := &rig{t: t, lanes: map[string][]LaneLag{}, sched: map[string]status.Schedule{"github": unprefetchedSchedule(), "nexon": testSchedule()}, views: map[string]limiter.View{}, states: map[string]settings.State{}, scenario: "fair"}
	for _, source := range []string{"github", "nexon"} {
		r.lanes[source] = []LaneLag{testLane(schemas.High, 0, 0), testLane(schemas.Low, 12_480, 35*time.Second)}
		r.states[source] = settings.State{Source: source, Configured: testQuota(), Effective: new(testQuota())}
		r.views[source] = testView(source, 0)
	}
	r.dependencies = []Dependency{{"Kafka", ""}, {"PostgreSQL", ""}, {"Redis", ""}}
	r.reads = []status.ReadStats{{Source: "nexon", Fresh: 9_120_551, Stale: 80_211, Updating: 3_012, NotFound: 41, AgeP50: 11 * time.Minute, AgeP95: 52 * time.Minute}}
	deps := Deps{
		Sources: []string{"github", "nexon"}, Facets: map[string][]string{"github": {"repository", "user"}, "nexon": {"character"}},
		Overview: (*fakeOverview)(r), Cluster: (*fakeOverview)(r), Clients: (*fakeClients)(r), Entities: (*fakeEntities)(r), Items: (*fakeItems)(r), Limits: (*fakeLimits)(r), Schedule: (*fakeSchedule)(r), DLQ: (*fakeDLQ)(r), DLQIndex: (*fakeDLQ)(r), Store: (*fakeStore)(r), Guard: (*fakeGuard)(r), Meters: (*fakeClientLimiter)(r),
		About: About{"query-1", "v1.2.3"}, Runs: (*fakeRuns)(r), Clock: func() time.Time { return testNow }, Log: slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&deps)
	}
	if deps.FaultScenarios != nil {
		deps.FaultScenarios = (*fakeScenarios)(r)
	}
	r.Console = New(deps)
	return r
}

// testLane returns the lag of a lane whose records are being processed.
func testLane(l schemas.Lane, records int64, wait time.Duration) LaneLag {
	return LaneLag{Lane: l, Records: records, Wait: wait, RecordsKnown: true, WaitKnown: records > 0}
}

// stalledLane returns the lag of a lane in which records wait, while no worker has processed a record
// for the duration "unworked".
func stalledLane(l schemas.Lane, records int64, unworked time.Duration) LaneLag {
	return LaneLag{Lane: l, Records: records, RecordsKnown: true, StalledFor: unworked}
}

// withScenarios makes the rig a demonstration with fault scenarios.
func withScenarios(n *Deps) { n.FaultScenarios = (*fakeScenarios)(nil) }

func readOnly(n *Deps) { n.ReadOnly = true }

// withNewConsole replaces the console of the rig, so that its caches are empty.
func withNewConsole(r *rig) *rig {
	r.Console = New(r.Deps)
	return r
}

func testQuota() settings.Values {
	return settings.Values{Policies: []settings.Policy{
		{Name: "second", Window: "1s", Limit: 500, Target: 450, HighReserve: limiter.Reserve{Calls: 100}},
		{Name: "day", Window: "day", TimeZone: "Asia/Seoul", Limit: 20_000_000, HighReserve: limiter.Reserve{Rate: 25}},
	}, Prefetch: settings.Prefetch{Enabled: true, Facets: map[string]settings.PrefetchFacet{
		"character": {Mode: "tiers", Hot: hours(1), Warm: hours(6), Cold: hours(24), MinInterval: hours(1) / 2, MaxInterval: hours(168)},
	}}}
}

func hours(n int) settings.Duration { return settings.Duration(time.Duration(n) * time.Hour) }

// testView returns the state of a limiter that permits calls. "since" is the time since the start
// of its only process.
func testView(source string, since time.Duration) limiter.View {
	at := testNow.Add(since)
	return limiter.View{
		Source: source, State: "flowing", At: at, RampRatio: 1, High: limiter.Share{PerSecond: 448}, Low: lowShare(),
		Policies: []limiter.PolicyView{
			{Name: "second", Window: "1s", Limit: 500, Target: 450, Remaining: 138, RemainingForLow: 50},
			{Name: "day", Window: "day", Limit: 20_000_000, Used: new(int64(16_900_000)), Remaining: 3_100_000, RemainingForLow: 2_290_000, ResetsAt: new(testNow.Add(9*time.Hour - 30*time.Second))},
		},
		Processes: []limiter.ProcessView{{
			Process: "worker-1", At: at, High: limiter.LaneView{Granted: int64(12 * since.Seconds())},
			Low: limiter.LaneView{Waiting: 212, OldestMS: 640, Reason: "the policy second has no room before", Granted: int64(300 * since.Seconds())},
		}},
	}
}
