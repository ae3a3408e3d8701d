package consumer_test

import (
	"testing"
	"time"

	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// readStale enqueues the request that a read of a stale snapshot causes.
func (r *rig) readStale(key string) producer.Result {
	r.Helper()
	return r.producer.Enqueue(r.Context(), producer.Request{Entity: entity(key), Lane: schemas.High, Reason: schemas.Stale})
}

// fault makes the upstream fail with this kind of fault for all entities whose key matches the
// regular expression `keys`. The kind "" removes all faults.
func (r *rig) fault(kind simulator.Kind, keys string) {
	r.Helper()
	c := simulator.Control{Faults: []simulator.Fault{}}
	if kind != "" {
		c.Faults = append(c.Faults, simulator.Fault{Kind: kind, Key: keys})
	}
	r.control(c)
}

func TestRetry_IsScheduledAfterThreeTries(t *testing.T) {
	r := newRig(t)
	r.fault(simulator.InternalError, "^a$")
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	s := r.status("a")
	if wait := time.Until(s.Until); s.State != store.Retrying || s.Rounds != 1 || s.Failures != 0 || wait > 90*time.Second || wait < 10*time.Second {
		t.Errorf("status: got %+v, due in %v, want RETRYING after 1 round, due in 10 to 90 seconds", s, wait)
	}
	if s.Lane != schemas.High || s.CorrelationID != "corr-a" || s.TraceParent != "trace-a" || s.Reason != string(schemas.Upstream5xx) || s.Error == "" {
		t.Errorf("status: got %+v, want that of the request", s)
	}
	if calls, deadLetters, announced := r.upstream.Stats().ByFault[simulator.InternalError], len(r.deadLetters()), r.retries.n.Load(); calls != 3 || deadLetters != 0 || announced != 1 {
		t.Errorf("calls, dead letters and announced retries: got %d, %d and %d, want 3, 0 and 1", calls, deadLetters, announced)
	}
	if r.lock("a") != "" {
		t.Errorf("lock: got %q, want none", r.lock("a"))
	}
	for range 100 {
		if got := r.readStale("a"); got.Outcome != producer.Held || got.HoldReason != schemas.HoldRetrying || got.Until.Sub(s.Until).Abs() > time.Second {
			t.Fatalf("read: got %+v, want it held for a retry until %v", got, s.Until)
		}
	}

	r.fault("", "")
	r.enqueue("a", schemas.High, schemas.Retry) // the test enqueues the scheduled retry itself, before it is due
	r.untilStored("a")
	r.until("the end of the row", func() bool { return r.status("a").State == "" })
	r.untilCommitted(schemas.High)
	if got := r.readStale("a"); got.Outcome == producer.Held {
		t.Errorf("read after the success: got %+v, want it not held", got)
	}
}

func TestRetry_LastRoundFailsThenSuspendsEntity(t *testing.T) {
	r := newRig(t)
	r.facet(func(f *source.Facet) {
		f.Retry = []time.Duration{time.Minute, time.Minute}
		f.FailedFor = time.Millisecond // a short FailedFor, so that the hold after a dead letter ends at once
	})
	r.fault(simulator.InternalError, "^a$")
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	for failure := 1; failure <= 3; failure++ {
		for round := 1; round <= 2; round++ { // before each dead letter, the entity must fail in both retry rounds again
			r.untilCommitted(schemas.High)
			if s := r.status("a"); s.State != store.Retrying || s.Rounds != round || s.Failures != failure-1 || len(r.deadLetters()) != failure-1 {
				t.Fatalf("round %d: got %+v and %d dead letters, want RETRYING, %d failures and as many dead letters",
					round, s, len(r.deadLetters()), failure-1)
			}
			r.enqueue("a", schemas.High, schemas.Retry)
		}
		r.untilCommitted(schemas.High)
		want := store.Failed
		if failure == 3 {
			want = store.Suspended
		}
		if s := r.status("a"); s.State != want || s.Failures != failure || len(r.deadLetters()) != failure {
			t.Fatalf("failure %d: got %+v and %d dead letters, want %v and %d", failure, s, len(r.deadLetters()), want, failure)
		}
		if failure < 3 {
			r.enqueue("a", schemas.High, schemas.Stale)
		}
	}
	if got := r.readStale("a"); got.Outcome != producer.Held || got.HoldReason != schemas.HoldSuspended {
		t.Errorf("read: got %+v, want it held as suspended", got)
	}
	deadLetters, err := r.db.DeadLetters(t.Context(), deadletters.Filter{Source: "nexon", Handled: deadletters.Open}, deadletters.DeadLetter{}, 10)
	if err != nil || len(deadLetters) != 3 {
		t.Fatalf("dead letters in the index: got %d, %v, want 3", len(deadLetters), err)
	}
	for _, l := range deadLetters {
		if l.Entity != entity("a") || l.Topic != schemas.DeadLetterTopic("nexon") || l.Reason != schemas.Upstream5xx || l.Attempts != 3 {
			t.Errorf("index row: got %+v, want the dead letter of a with 3 attempts", l)
		}
	}

	r.fault("", "")
	r.enqueue("a", schemas.High, schemas.Replay)
	r.untilStored("a")
	r.until("the end of the row", func() bool { return r.status("a").State == "" })
}

func TestNotReady_WaitsWithoutCountingFailure(t *testing.T) {
	r := newRig(t)
	r.fault(simulator.NotReady, "")
	r.work(schemas.Low)
	r.enqueue("a", schemas.Low, schemas.Prefetch)
	for range 5 { // five fetches are more than the facet has retry rounds: if each counted as a round, a dead letter would follow
		r.untilCommitted(schemas.Low)
		if s := r.status("a"); s.State != store.Retrying || s.Rounds != 0 || s.Lane != schemas.Low || s.Reason != string(schemas.NotReady) {
			t.Fatalf("status: got %+v, want a retry without a counted round", s)
		}
		r.enqueue("a", schemas.Low, schemas.Retry)
	}
	r.untilCommitted(schemas.Low)
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestFailure_SettlesOlderRequestsWithoutFetch(t *testing.T) {
	r := newRig(t)
	result := r.enqueue("a", schemas.High, schemas.CacheMiss)
	// The worker that stored the failure was killed before it settled the request.
	err := r.db.WriteFailure(t.Context(), store.Status{
		Entity: entity("a"), State: store.Retrying, Version: result.Number + 1, Rounds: 1, Until: time.Now().Add(time.Hour),
		Lane: schemas.High, Since: time.Now(), UpdatedAt: time.Now(),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if calls, s := r.upstream.Stats().Arrivals, r.status("a"); calls != 0 || s.Rounds != 1 {
		t.Errorf("calls and status: got %d and %+v, want 0 and 1 round", calls, s)
	}
	if got := r.readStale("a"); got.Outcome != producer.Held || got.HoldReason != schemas.HoldRetrying {
		t.Errorf("read: got %+v, want it held for a retry", got)
	}
}

// failedBefore stores a failure status of the entity in the database, without the hold in Redis.
func (r *rig) failedBefore(key string, state store.StatusState) {
	r.Helper()
	err := r.db.WriteFailure(r.Context(), store.Status{
		Entity: entity(key), State: state, Version: 7, Failures: 1, Until: time.Now().Add(time.Hour),
		Lane: schemas.High, Since: time.Now(), UpdatedAt: time.Now(),
	}, nil)
	if err != nil {
		r.Fatal(err)
	}
}

func TestHold_IsRestoredAfterRedisLosesIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state store.StatusState
		hold  string
		calls int
	}{
		// 2 calls are expected: the request is made by a person, so it is not skipped in spite of the
		// stored failure
		{store.Failed, schemas.HoldFailed, 2},
		{store.Suspended, schemas.HoldSuspended, 2},
	} {
		t.Run(c.hold, func(t *testing.T) {
			r := newRig(t)
			r.failedBefore("a", c.state)
			r.fault(simulator.BadParameter, "")
			r.work(schemas.High)
			r.enqueue("a", schemas.High, schemas.Stale)
			r.untilCommitted(schemas.High)
			if calls, deadLetters := r.upstream.Stats().Arrivals, len(r.deadLetters()); calls != c.calls || deadLetters != 0 {
				t.Errorf("got %d calls and %d new dead letters, want none", calls, deadLetters)
			}
			if got, s := r.readStale("a"), r.status("a"); got.Outcome != producer.Held || got.HoldReason != c.hold || s.State != c.state {
				t.Errorf("read and status: got %+v and %+v, want it held by %v, and %v", got, s, c.hold, c.state)
			}
			r.fault("", "")
			r.enqueue("a", schemas.High, schemas.UserRequest)
			r.untilStored("a")
		})
	}
}

func TestHold_LaterRefreshIsFetchedWithoutHold(t *testing.T) {
	r := newRig(t)
	r.failedBefore("a", store.Failed)
	r.enqueue("a", schemas.High, schemas.Stale)
	got := r.producer.Enqueue(t.Context(), producer.Request{Entity: entity("a"), Lane: schemas.High, Reason: schemas.UserRequest})
	if got.Outcome != producer.AlreadyProcessing {
		t.Fatalf("enqueue: got %+v, want already processing", got)
	}
	r.work(schemas.High)
	r.untilStored("a")
}

func TestOutage_WritesNoDeadLetterAndCountsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, kind := range []simulator.Kind{simulator.InternalError, simulator.HTML200, simulator.BadParameter, simulator.Reset, simulator.BadKey} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.work(schemas.High)
			keys := keysOf("k", 60)
			r.enqueueAll(keys[:30], schemas.High, schemas.CacheMiss)
			r.untilStored(keys[:30]...)
			r.fault(kind, "")
			r.enqueueAll(keys[30:], schemas.High, schemas.CacheMiss)
			r.until("an open breaker", func() bool { return r.limiter.BreakerOpenSince(time.Now()) })
			r.fault("", "")
			r.untilCommitted(schemas.High)
			r.untilRefreshed(keys)
		})
	}
}

// untilRefreshed enqueues the scheduled retries at once and waits until all keys are stored. It
// fails the test if an attempt was counted as a failure or a dead letter was written.
func (r *rig) untilRefreshed(keys []string) {
	r.Helper()
	for _, key := range keys {
		if s := r.status(key); s.State == store.Retrying && s.Rounds == 0 {
			r.enqueue(key, schemas.High, schemas.Retry)
		} else if s.State != "" {
			r.Errorf("status of %s: got %+v, want RETRYING without a round, or none", key, s)
		}
	}
	r.untilStored(keys...)
	r.untilCommitted(schemas.High)
	if n := len(r.deadLetters()); n != 0 {
		r.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestShrinkGuard_RejectsMuchSmallerContent(t *testing.T) {
	r := newRig(t)
	r.facet(func(f *source.Facet) {
		f.ShrinkGuard = .5
		f.Documents = map[string]source.Document{"item-equipment": {Path: "/character/item-equipment?ocid={ocid}"}}
	})
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
	before, _ := r.snapshot("a")
	r.fault(simulator.Shrink, "")
	r.enqueue("a", schemas.High, schemas.UserRequest)
	r.untilCommitted(schemas.High)
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.ParseError || len(l[0].Sample) == 0 {
		t.Errorf("dead letters: got %+v, want 1 PARSE_ERROR with a sample", l)
	}
	if after, _ := r.snapshot("a"); after.State != before.State {
		t.Errorf("snapshot: got %+v, want it unchanged", after.State)
	}
}

func TestDBBreaker_StopsFetchingWhileOpen(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	keys := keysOf("k", 40)
	r.requests.noBegin.Store(true) // Begin fails, so all records stop directly before their fetch
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	r.until("all to be tried", func() bool { return r.requests.tries.Load() >= int64(len(keys)) })
	r.db.down.Store(true)
	r.enqueue("a", schemas.High, schemas.CacheMiss) // all database calls for this record fail, which opens the database's breaker
	// Database call 6 is the first probe of the open breaker, 2 s after call 5 has opened it. By then
	// every record has seen the open breaker and waits, so none can still make an upstream call.
	r.until("the first probe of the open breaker", func() bool { return r.db.tries.Load() >= 6 })
	r.requests.noBegin.Store(false)
	r.until("another probe", func() bool { return r.db.tries.Load() >= 7 })
	if n := r.upstream.Stats().Arrivals; n != 0 {
		t.Errorf("calls while the database is down: got %d, want 0", n)
	}
	r.db.down.Store(false)
	r.untilStored(keys...)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
}

func TestProbe_FailureDoesNotCountForEntity(t *testing.T) {
	t.Parallel()
	for _, kind := range []simulator.Kind{simulator.HTML200, simulator.InternalError, simulator.BadParameter} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.fault(kind, "")
			r.work(schemas.High)
			// Another process has opened the breaker. This process knows one known-good entity.
			r.limiter.OpenBreaker(time.Second, time.Second, time.Now())
			r.enqueue("a", schemas.High, schemas.CacheMiss)
			r.untilCommitted(schemas.High)
			if n, s := len(r.deadLetters()), r.status("a"); n != 0 || s.State != store.Retrying || s.Rounds != 0 {
				t.Errorf("dead letters and status: got %d and %+v, want 0 and RETRYING without a round", n, s)
			}
			r.fault("", "")
			r.enqueue("a", schemas.High, schemas.Retry)
			r.untilStored("a")
			r.untilCommitted(schemas.High)
		})
	}
}

func TestDeadLetter_IsWrittenOnceForHeldEntity(t *testing.T) {
	r := newRig(t)
	r.fault(simulator.BadParameter, "")
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	for range 100 { // by adr-013 these reads would cause 100 events, 100 calls and 100 dead letters
		if got := r.readStale("a"); got.Outcome != producer.Held {
			t.Fatalf("read: got %+v, want it held", got)
		}
	}
	for range 3 { // failures of requests that bypass the hold are not counted
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.untilCommitted(schemas.High)
	}
	if s := r.status("a"); s.State != store.Failed || s.Failures != 1 {
		t.Errorf("status: got %+v, want FAILED once", s)
	}
	if calls, deadLetters := r.upstream.Stats().Arrivals, len(r.deadLetters()); calls != 2+3*2 || deadLetters != 1+3 {
		t.Errorf("calls and dead letters: got %d and %d, want 8 and 4", calls, deadLetters)
	}
}

func TestFailure_SettlesQueuedRequestsOfEntity(t *testing.T) {
	r := newRig(t)
	r.fault(simulator.InternalError, "")
	// The requests form a backlog. Their locks have expired, so none was coalesced and each one is
	// a record of its own.
	for n := range 12 {
		r.enqueue("a", schemas.High, schemas.Stale)
		if err := r.rdb.HDel(t.Context(), "upd:{nexon/character/a}", "lock").Err(); err != nil {
			t.Fatal(n, err)
		}
	}
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if s, calls := r.status("a"), r.upstream.Stats().Arrivals; s.State != store.Retrying || s.Rounds != 0 || calls != 3 {
		t.Errorf("status and calls: got %+v and %d, want RETRYING without a round and 3", s, calls)
	}
}

func TestRetry_OfRemovedFacetEnds(t *testing.T) {
	r := newRig(t)
	gone := schemas.Entity{Source: "nexon", Facet: "union", Key: "a"}
	now := time.Now()
	err := r.db.WriteFailure(t.Context(), store.Status{Entity: gone, State: store.Retrying, Version: 1, Until: now, Lane: schemas.High, Since: now, UpdatedAt: now}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.work(schemas.High)
	r.producer.Enqueue(t.Context(), producer.Request{Entity: gone, Lane: schemas.High, Reason: schemas.Retry})
	r.until("the dead letter", func() bool { return len(r.deadLetters()) == 1 })
	r.untilCommitted(schemas.High)
	if next, err := r.db.NextRetryTime(t.Context(), "nexon"); err != nil || !next.IsZero() {
		t.Errorf("next retry: got %v, %v, want none", next, err)
	}
}

// The endpoint has recovered, but its breaker is still open. The first record starts a probe, and is
// fetched when the probe has closed the breaker.
func TestEndpoint_FirstRecordFollowsItsProbe(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.untilCommitted(schemas.High)
	r.health.OpenEndpoint("character")
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("the end of the record", func() bool { _, stored := r.snapshot("a"); return stored || r.status("a").State != "" })
	if s := r.status("a"); s.State != "" {
		t.Errorf("status of the record that started the probe: got %s at %v (%s), want its content", s.State, s.Until, s.Error)
	}
}
