package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/store"
)

func TestWorker_StoresSettlesAndCommits(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
	s, _ := r.snapshot("a")
	text, err := s.Decode(nil)
	if err != nil || !bytes.Contains(text, []byte(`{"basic":{`)) || s.NotFound || s.Version == 0 {
		t.Errorf("snapshot: got %+v with %s, %v, want content", s.State, text, err)
	}
	if lock := r.lock("a"); lock != "" {
		t.Errorf("lock: got %q, want none", lock)
	}
	if stats := r.upstream.Stats(); stats.Arrivals != 1 {
		t.Errorf("calls: got %d, want 1", stats.Arrivals)
	}
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestWorker_TouchesUnchangedContent(t *testing.T) {
	r := newRig(t)
	r.work(schemas.Low)
	for _, key := range []string{"a", "b"} {
		r.enqueue(key, schemas.Low, schemas.Prefetch)
	}
	r.untilStored("a", "b")
	r.untilCommitted(schemas.Low)
	before := map[string]string{}
	for _, key := range []string{"a", "b"} {
		s, _ := r.snapshot(key)
		before[key] = fmt.Sprint(s.Hash, s.UpdatedAt)
	}

	for round, changes := range []float64{0, 100} {
		r.control(simulator.Control{ChangePercent: changes})
		for _, key := range []string{"a", "b"} {
			first, _ := r.snapshot(key)
			r.enqueue(key, schemas.Low, schemas.Trigger)
			r.until("a later check of "+key, func() bool { s, _ := r.snapshot(key); return s.Version > first.Version })
			s, _ := r.snapshot(key)
			if changed := fmt.Sprint(s.Hash, s.UpdatedAt) != before[key]; changed != (round == 1) || !s.CheckedAt.After(first.CheckedAt) {
				t.Errorf("round %d: %s: got changed %v, checked at %v, want changed %v, checked after %v",
					round, key, changed, s.CheckedAt, round == 1, first.CheckedAt)
			}
		}
	}
	r.untilCommitted(schemas.Low)
}

func TestWorker_SerializesRequestsOfOneEntity(t *testing.T) {
	r := newRig(t)
	r.control(simulator.Control{Latency: &simulator.Range{Min: 20 * time.Millisecond, Max: 40 * time.Millisecond}})
	for i := range 6 { // six records for each entity; each of them needs its own fetch
		for _, key := range []string{"a", "b", "c"} {
			request := schemas.UpdateRequest{
				EventID: "e", Entity: entity(key), Lane: schemas.High, Reason: schemas.UserRequest,
				// without a version and with a time in the future, the request is not satisfied by the
				// fetch of another record
				RequestedAt: time.Now().Add(time.Hour),
			}
			value, err := request.Encode()
			if err != nil {
				t.Fatal(err)
			}
			r.produce(schemas.High, kgo.Record{Key: request.RecordKey(), Value: value, Timestamp: time.UnixMilli(int64(i + 1))})
		}
	}
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	stats := r.upstream.Stats()
	if stats.Arrivals != 18 || stats.MaxInFlight > 3 || stats.MaxInFlight < 2 {
		t.Errorf("calls: got %d, at most %d at once, want 18, at most 2 or 3 at once", stats.Arrivals, stats.MaxInFlight)
	}
}

func TestNotFound_IsStoredAndHeld(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	r.enqueue("notfound-1", schemas.High, schemas.CacheMiss)
	r.untilStored("notfound-1")
	r.untilCommitted(schemas.High)
	if s, _ := r.snapshot("notfound-1"); !s.NotFound || s.HasContent() {
		t.Errorf("snapshot: got %+v, want it not found", s.State)
	}
	for range 100 {
		got := r.producer.Enqueue(t.Context(), producer.Request{Entity: entity("notfound-1"), Lane: schemas.High, Reason: schemas.Stale})
		if got.Outcome != producer.Held || got.HoldReason != schemas.HoldNotFound {
			t.Fatalf("read: got %+v, want it held as not found", got)
		}
	}
	if n, calls := len(r.deadLetters()), r.upstream.Stats().Arrivals; n != 0 || calls != 1 {
		t.Errorf("dead letters and calls: got %d and %d, want 0 and 1", n, calls)
	}
}

func TestBackoff_After429LosesNothing(t *testing.T) {
	r := newRig(t)
	one := 1
	r.control(simulator.Control{Faults: []simulator.Fault{{Kind: simulator.TooManyRequests, Count: &one, RetryAfter: "1"}}})
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
	if n, calls := len(r.deadLetters()), r.upstream.Stats().Arrivals; n != 0 || calls != 2 {
		t.Errorf("dead letters and calls: got %d and %d, want 0 and 2", n, calls)
	}
}

func TestRefusedCredential_OpensBreaker(t *testing.T) {
	r := newRig(t)
	r.control(simulator.Control{APIKey: new("another")})
	r.work(schemas.High)
	r.enqueueAll([]string{"a", "b", "c"}, schemas.High, schemas.CacheMiss)
	r.until("a stop", func() bool { return r.limiter.BreakerOpenSince(time.Now()) })
	permit, err := r.limiter.Acquire(timeout(t, 2*time.Second), schemas.High, limiter.Call{})
	if err == nil {
		permit.Release()
		t.Error("the breaker of the source did not open")
	}
	r.untilCommitted(schemas.High)
	for _, key := range []string{"a", "b", "c"} {
		if s := r.status(key); s.State != store.Retrying || s.Rounds != 0 {
			t.Errorf("status of %s: got %+v, want a retry that counts nothing", key, s)
		}
	}
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestDatabaseDown_LosesNothing(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")

	r.db.down.Store(true)
	keys := keysOf("k", 20)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	r.until("some tries", func() bool { return r.db.tries.Load() >= 3 })
	if lag := r.lag(schemas.High); lag < 20 {
		t.Errorf("lag without a write: got %d, want at least 20", lag)
	}
	r.db.down.Store(false)
	r.untilStored(keys...)
	r.untilCommitted(schemas.High)
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}

func TestSettleFailure_HoldsOffset(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	r.requests.noSettle.Store(true)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	r.until("some tries", func() bool { return r.requests.tries.Load() >= 3 })
	if r.lag(schemas.High) != 1 {
		t.Error("the offset was committed before the request was settled")
	}
	r.requests.noSettle.Store(false)
	r.untilCommitted(schemas.High)
	if calls := r.upstream.Stats().Arrivals; calls != 1 {
		t.Errorf("calls: got %d, want 1", calls)
	}
}

func TestRedisDown_SendsAndLosesNothing(t *testing.T) {
	r := newRig(t)
	r.requests.noPeek.Store(true)
	r.work(schemas.High)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("some tries", func() bool { return r.requests.tries.Load() >= 3 })
	r.requests.noBegin.Store(true)
	r.requests.noPeek.Store(false)
	before := r.requests.tries.Load()
	r.until("further tries", func() bool { return r.requests.tries.Load() >= before+2 })
	if calls := r.upstream.Stats().Arrivals; calls != 0 || r.lag(schemas.High) != 1 {
		t.Errorf("calls and lag: got %d and %d, want 0 and 1", calls, r.lag(schemas.High))
	}
	r.requests.noBegin.Store(false)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
}

func TestCrash_BeforeSettleRepeatsWithoutCall(t *testing.T) {
	r := newRig(t)
	result := r.enqueue("a", schemas.High, schemas.CacheMiss)
	// The killed worker has fetched and stored the entity, but has not settled the request.
	request := schemas.UpdateRequest{Entity: entity("a"), Version: result.Number, Lane: schemas.High}
	_, number, err := r.requests.Begin(t.Context(), request, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.store("a", number)
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if calls := r.upstream.Stats().Arrivals; calls != 0 {
		t.Errorf("calls for a stored snapshot: got %d, want 0", calls)
	}
	if lock := r.lock("a"); lock != "" {
		t.Errorf("lock of the killed worker: got %q, want none", lock)
	}
}

func TestLowRequest_IsSupersededByHigh(t *testing.T) {
	r := newRig(t)
	r.enqueue("a", schemas.Low, schemas.Prefetch)
	if up := r.enqueue("a", schemas.High, schemas.CacheMiss); up.Outcome != producer.Upgraded {
		t.Fatalf("enqueue: got %+v, want upgraded", up)
	}
	r.work(schemas.Low)
	r.untilCommitted(schemas.Low)
	if _, stored := r.snapshot("a"); stored {
		t.Error("got a LOW call for a superseded request")
	}
	r.work(schemas.High)
	r.untilStored("a")
	r.untilCommitted(schemas.High)
	if calls := r.upstream.Stats().Arrivals; calls != 1 {
		t.Errorf("calls: got %d, want 1", calls)
	}
}

func TestSchemaV1_IsSatisfiedByLaterFetchOnly(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	event := func(requested time.Time) {
		r.produce(schemas.High, kgo.Record{Value: fmt.Appendf(nil,
			`{"schemaVersion":"1.1","eventId":"e","characterId":42,"ocid":"other","priority":"HIGH","reason":"STALE","requestedAt":%q,"correlationId":"c","version":1}`,
			requested.UTC().Format(time.RFC3339Nano))})
	}
	event(time.Now())
	r.untilStored("42")
	r.untilCommitted(schemas.High)
	s, _ := r.snapshot("42")
	event(s.CheckedAt.Add(-time.Millisecond)) // requested before the last check, so the stored snapshot satisfies the request
	r.untilCommitted(schemas.High)
	event(s.CheckedAt.Add(time.Second)) // requested after the last check, so the entity is fetched again
	r.untilCommitted(schemas.High)
	stats := r.upstream.Stats()
	if stats.Arrivals != 2 || stats.DistinctKeys != 1 {
		t.Errorf("calls and keys: got %d and %d, want 2 and 1", stats.Arrivals, stats.DistinctKeys)
	}
	if len(r.deadLetters()) != 0 {
		t.Errorf("dead letters: got %+v, want none", r.deadLetters())
	}
}

func TestRebalance_WithSlowUpstreamLosesNothing(t *testing.T) {
	r := newRig(t)
	r.control(simulator.Control{Latency: &simulator.Range{Min: 10 * time.Millisecond, Max: 150 * time.Millisecond}})
	r.work(schemas.Low)
	var keys []string
	for round := range 4 {
		before := r.db.wrote.Load()
		var some []string
		for i := range 60 {
			some = append(some, fmt.Sprintf("k%d-%d", round, i))
		}
		keys = append(keys, some...)
		r.enqueueAll(some, schemas.Low, schemas.Prefetch)
		stop := r.work(schemas.Low)
		r.until("some writes", func() bool { return r.db.wrote.Load() >= before+40 })
		if round%2 == 0 {
			stop()
		}
	}
	r.untilStored(keys...)
	r.untilCommitted(schemas.Low)
	if n := len(r.deadLetters()); n != 0 {
		t.Errorf("dead letters: got %d, want 0", n)
	}
}
