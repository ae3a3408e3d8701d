package console

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
)

// varyingView returns the state of a limiter whose rates change over time, so that the charts show
// curves.
func varyingView(since time.Duration) limiter.View {
	v := testView("nexon", since)
	s := since.Seconds() + 300
	p := &v.Processes[0]
	p.High.Granted, p.Low.Granted = int64(12*s+60*math.Sin(s/9)+100), int64(300*s-900*math.Cos(s/21)+1000)
	other := *p
	other.Process, other.High.Granted, other.Low.Granted = "worker-2", p.High.Granted/3, p.Low.Granted/9
	v.Processes = append(v.Processes, other)
	v.Revision, v.NewestRevision = 7, 7
	v.Low.PerSecond, v.Low.Bounds[0].PerSecond, v.Low.Bounds[0].Reserved, v.Low.Bounds[1].PerSecond = 390, 418, 30, 390
	return v
}

// backingOffView returns the state of a limiter that backs off, because the upstream has rejected
// calls.
func backingOffView(since time.Duration) limiter.View {
	at := testNow.Add(since)
	left, none := int64(4_811), int64(0)
	return limiter.View{
		Source: "github", State: "backing-off", At: at, Until: new(at.Add(42 * time.Second)), RampRatio: 0.5, Revision: 3, NewestRevision: 3, Low: limiter.Share{Bounds: []limiter.Bound{{Policy: "minute", PerSecond: 6.6, Reserved: 0.8}}},
		Policies: []limiter.PolicyView{{Name: "minute", Window: "1m0s", Limit: 900, Target: 880, Used: new(int64(871)), Remaining: 9, RemainingForLow: 0}},
		Scopes: []limiter.ScopeView{
			{Policy: "core", Scope: "token-a", Remaining: &left, InFlight: 3, Until: new(at.Add(31 * time.Minute)), At: at},
			{Policy: "core", Scope: "token-b", Remaining: &none, Until: new(at.Add(12 * time.Minute)), At: at},
			{Policy: "credential", Scope: "token-c", BreakerOpen: true, Until: new(at.Add(90 * time.Second)), At: at},
		},
		Processes: []limiter.ProcessView{{
			Process: "worker-1", At: at, High: limiter.LaneView{Waiting: 3, OldestMS: 8_200, Reason: "backoff: the upstream refused calls", Granted: 1_204},
			Low: limiter.LaneView{Waiting: 512, OldestMS: 41_000, Reason: "backoff: the upstream refused calls", Granted: 80_113},
		}},
	}
}

// fillRig sets the fakes so that every page of the console has content.
func fillRig(r *rig) {
	r.lanes["github"] = []LaneLag{testLane(schemas.High, 3, 8*time.Second), testLane(schemas.Low, 41_207, 26*time.Minute)}
	r.reads = append(r.reads, status.ReadStats{Source: "github", Fresh: 51_204, Stale: 9_112, Updating: 220, NotFound: 18, AgeP50: 24 * time.Minute, AgeP95: 3 * time.Hour})
	r.dependencies = []Dependency{{"PostgreSQL", ""}, {"Redis", ""}, {"Kafka", "dial tcp 10.0.0.7:9092: connect: connection refused"}}
	e := schemas.Entity{Source: "nexon", Facet: "character", Key: "3fa8b1c2d4"}
	fillFind(r)
	fillCollection(r)
	fillClients(r)
	fillRuns(r)
	const broken = "GET /character/item-equipment: the upstream answered 503 three times in a row: {\"error\":{\"name\":\"OPENAPI00009\",\"message\":\"Service temporarily unavailable\"}}"
	for i := range 60 {
		r.list = append(r.list, deadletters.DeadLetter{
			ID:     deadletters.ID{Topic: "nexon.update-dlq", Partition: int32(i % 12), Offset: int64(120 + i)},
			Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: fmt.Sprintf("%08x%02x", 0x3fa8b1c2+i*7919, i)},
			Reason: schemas.Upstream5xx, Error: broken, Status: 503, Attempts: 9, Replays: i % 3, At: testNow.Add(-time.Duration(i) * 11 * time.Minute),
		})
	}
	r.checkedAt = map[string]time.Time{r.list[7].Entity.Key: testNow.Add(-4 * time.Minute)}
	r.groups = []deadletters.Group{
		{Reason: schemas.Upstream5xx, Fingerprint: "a1b2c3d4e5f60718", Facet: "character", Status: 503, Error: broken, Count: 11_920, First: testNow.Add(-19 * time.Hour), Last: testNow.Add(-6 * time.Minute), AtReplayLimit: 14},
		{Reason: schemas.ParseError, Fingerprint: "0718a1b2c3d4e5f6", Facet: "character", Status: 200, Error: "item-equipment: item_equipment is not a list", Count: 341, First: testNow.Add(-5 * time.Hour), Last: testNow.Add(-2 * time.Hour)},
		{Reason: schemas.Upstream4xx, Fingerprint: "e5f60718a1b2c3d4", Facet: "character", Status: 400, Error: "OPENAPI00004: Please input valid parameter", Count: 7, First: testNow.Add(-21 * time.Hour), Last: testNow.Add(-3 * time.Hour)},
	}
	for i := range 20 {
		at := testNow.Truncate(time.Hour).Add(-time.Duration(i) * time.Hour)
		r.hours = append(r.hours, deadletters.Group{First: at, Reason: schemas.ParseError, Count: int64(20 - i)}, deadletters.Group{First: at, Reason: schemas.Upstream5xx, Count: int64(600 + 300*(i%5))})
	}
	slices.SortStableFunc(r.hours, func(a, b deadletters.Group) int { return a.First.Compare(b.First) })
	r.entity = Entity{
		Stored: true, Lifetimes: store.Lifetimes{FreshFor: time.Hour},
		State:   store.State{Entity: e, Version: 1_769_511_628_000, Encoding: "zstd", Size: 311_820, CheckedAt: testNow.Add(-3 * time.Hour), FetchedAt: testNow.Add(-3 * time.Hour), UpdatedAt: testNow.Add(-26 * time.Hour)},
		Payload: []byte(`{"character_name":"somebody","level":284,"item_equipment":[{"item":"hat"}]}`),
		Status: store.Status{
			Entity: e, State: store.Retrying, Reason: "UPSTREAM_5XX", Error: broken, Rounds: 2, Version: 9, Until: testNow.Add(4 * time.Minute), Since: testNow.Add(-9 * time.Minute), UpdatedAt: testNow.Add(-2 * time.Minute),
		},
		Request:     RequestState{Hold: schemas.HoldRetrying, HoldUntil: testNow.Add(4 * time.Minute)},
		Registered:  &prefetched.RegisteredEntity{Entity: e, Tier: prefetched.Hot, Enabled: true, Due: testNow.Add(40 * time.Minute)},
		DeadLetters: r.list[40:41],
	}
	value, err := schemas.UpdateRequest{EventID: "0198b2c0-0815", Entity: e, Lane: schemas.High, Reason: schemas.Stale, RequestedAt: testNow.Add(-8 * time.Hour), CorrelationID: "0198b2c0-4711", Version: 1_769_511_628_000}.Encode()
	if err != nil {
		r.t.Fatal(err)
	}
	r.shown = schemas.DeadLetter{
		Key: []byte("character/3fa8b1c2d4"), Value: value, Reason: schemas.Upstream5xx, Error: broken, Attempts: 9, Topic: "nexon.update-priority-high", Partition: 7, Offset: 90_112,
		Group: "nexon.high-worker", Worker: "worker-1", Time: testNow.Add(-7 * time.Hour), Status: 503, Sample: []byte(`{"error":{"name":"OPENAPI00009"}}`), SampleType: "application/json",
		Headers: []schemas.Header{{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}},
	}
	r.planned = dlq.Plan{Total: 12_268, Count: 12_254, Routes: []dlq.Route{
		{Reason: schemas.Upstream5xx, Facet: "character", Count: 11_906, Topic: "nexon.update-priority-low"},
		{Reason: schemas.Upstream5xx, Facet: "character", Count: 14, Refused: dlq.RefusedLimit},
		{Reason: schemas.ParseError, Facet: "character", Count: 341, Topic: "nexon.update-priority-low"},
		{Reason: schemas.Upstream4xx, Facet: "character", Count: 7, Topic: "nexon.update-priority-low"},
	}}
	r.jobs = []deadletters.Job{
		{
			ID: "0198b2c0-0000-7000-8000-000000000001", Source: "nexon", Kind: deadletters.ReplayJob, Filter: deadletters.Filter{Source: "nexon", Reason: schemas.Upstream5xx, Handled: "open", Until: testNow}, Lane: schemas.Low, Rate: 50,
			State: deadletters.JobRunning, Total: 12_254, Done: 4_112, Refused: map[string]int64{dlq.RefusedLimit: 14, dlq.RefusedGone: 2}, Note: "after the outage of this morning", CreatedAt: testNow.Add(-80 * time.Second), CreatedBy: "key:3k7m2xqpzt4a on-call", UpdatedAt: testNow.Add(-2 * time.Second),
		},
		{
			ID: "0198b2c0-0000-7000-8000-000000000002", Source: "github", Kind: deadletters.PurgeJob, Filter: deadletters.Filter{Source: "github", Handled: "open", Until: testNow}, State: deadletters.JobStopped, Total: 40, Done: 12,
			CreatedAt: testNow.Add(-26 * time.Hour), CreatedBy: "admin-token",
		},
	}
	changed, by := testNow.Add(-50*time.Minute), "key:3k7m2xqpzt4a on-call"
	s := r.states["nexon"]
	s.Revision, s.ChangedAt, s.ChangedBy = 7, &changed, &by
	s.Effective.Policies[0].Target = 400
	r.states["nexon"] = s
	r.audit = []settings.Entry{
		{ID: 9, At: changed, Actor: by, Action: "set", Source: "nexon", Before: json.RawMessage(`{}`), After: json.RawMessage(`{"policies":{"second":{"target":400}}}`), Note: "the upstream asked us to be gentle tonight"},
		{ID: 8, At: testNow.Add(-2 * time.Hour), Actor: "admin-token", Action: "resume", Source: "github", Before: json.RawMessage(`{"stopped":true}`), After: json.RawMessage(`{}`)},
		{ID: 7, At: testNow.Add(-3 * time.Hour), Actor: "admin-token", Action: "stop", Source: "github", Before: json.RawMessage(`{}`), After: json.RawMessage(`{"stopped":true}`), Note: "they called"},
		{ID: 5, At: testNow.Add(-30 * time.Hour), Actor: "unauthenticated@127.0.0.1", Action: "key-create", Before: json.RawMessage(`{}`), After: json.RawMessage(`{"id":"3k7m2xqpzt4a","name":"on-call"}`)},
	}
}

// runFor returns a rig whose clock starts the given number of seconds before testNow, and takes a
// sample for each second. So the charts have data.
func runFor(t *testing.T, seconds int, changes ...func(*Deps)) *rig {
	past := time.Duration(seconds) * time.Second
	var mu sync.Mutex
	var before time.Duration
	began := time.Now()
	passed := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return before + time.Since(began)
	}
	r := newRig(t, append(changes, func(n *Deps) { n.Clock = func() time.Time { return testNow.Add(passed() - past) } })...)
	r.view = func(source string) limiter.View {
		if source == "github" {
			return backingOffView(passed() - past)
		}
		return varyingView(passed() - past)
	}
	for range seconds {
		r.sampler.latest(t.Context())
		mu.Lock()
		before += time.Second
		mu.Unlock()
	}
	return r
}

// testHistory returns an hour of history that ends at the given time. nexon has a 429 storm with a
// backoff, a stop, and a gap of three minutes. github has an outage with an open breaker.
func testHistory(name string, now time.Time, after int64) status.History {
	const samples = 720
	unknown := float32(math.NaN())
	h := status.History{Times: []int64{}, States: []limiter.State{}, Calls: map[string]status.Values{}, Reads: map[string]status.Values{}}
	last := now.Truncate(5 * time.Second).Unix()
	for i := range samples {
		at := last - int64(samples-1-i)*5
		if at <= after {
			continue
		}
		x := float64(i)
		wave := float32(290 + 40*math.Sin(x/31) + 12*math.Sin(x/3))
		calls := map[string]float32{"2xx": wave * 0.6, "304": wave * 0.35, "404": wave * 0.03, "429": 0, "4xx": 0, "5xx": 0.2, "timeout": 0, "other": 0}
		allowed, state, seconds := float32(450), limiter.StateFlowing, float32(5)
		switch github := name == "github"; {
		case github && i > 500 && i < 620:
			calls = map[string]float32{"2xx": 0.2, "304": 0, "404": 0, "429": 0, "4xx": 0, "5xx": 1.1, "timeout": 0.6, "other": 0.1}
			allowed, state = 14.7, limiter.StateFlowing
			if i > 530 {
				calls, allowed, state = map[string]float32{"2xx": 0, "304": 0, "404": 0, "429": 0, "4xx": 0, "5xx": 0.05, "timeout": 0, "other": 0}, 0, limiter.StateBreakerOpen
			}
		case github:
			calls = map[string]float32{"2xx": 2 + wave/300, "304": 1, "404": 0.1, "429": 0, "4xx": 0, "5xx": 0, "timeout": 0, "other": 0}
			allowed = 14.7
		case i > 200 && i < 260:
			calls["429"], calls["2xx"] = wave*0.2, wave*0.4
		case i >= 260 && i < 290:
			calls, allowed, state = map[string]float32{"2xx": 0, "304": 0, "404": 0, "429": 1, "4xx": 0, "5xx": 0, "timeout": 0, "other": 0}, 0, limiter.StateBackingOff
		case i >= 290 && i < 300:
			allowed, state = 225, limiter.StateRamping
		case i >= 420 && i < 456:
			calls, seconds, allowed, state = map[string]float32{"2xx": unknown, "304": unknown, "404": unknown, "429": unknown, "4xx": unknown, "5xx": unknown, "timeout": unknown, "other": unknown}, unknown, unknown, ""
		case i >= 560 && i < 620:
			calls, allowed, state = map[string]float32{"2xx": 0, "304": 0, "404": 0, "429": 0, "4xx": 0, "5xx": 0, "timeout": 0, "other": 0}, 0, limiter.StateStopped
		}
		h.Times, h.Seconds, h.AllowedRate, h.States = append(h.Times, at), append(h.Seconds, seconds), append(h.AllowedRate, allowed), append(h.States, state)
		for outcome, rate := range calls {
			h.Calls[outcome] = append(h.Calls[outcome], rate)
		}
		for kind, rate := range map[string]float32{"fresh": wave * 40, "stale": wave * float32(1+5*math.Sin(x/90)*math.Sin(x/90)), "none": wave * 0.3, "notFound": wave * 0.6} {
			h.Reads[kind] = append(h.Reads[kind], rate+seconds-seconds)
		}
		high, low := float32(max(0, 40*math.Sin(x/12)-30)), float32(12_480+9_000*math.Sin(x/140))
		h.High.Records, h.High.DelaySeconds = append(h.High.Records, high), append(h.High.DelaySeconds, high/10)
		h.Low.Records, h.Low.DelaySeconds = append(h.Low.Records, low), append(h.Low.DelaySeconds, low/356)
	}
	return h
}
