package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
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

func TestDeadLetter_CopiesPoisonMessage(t *testing.T) {
	r := newRig(t)
	valid, err := schemas.UpdateRequest{
		EventID: "e", Entity: entity("a"), Lane: schemas.Low, Reason: schemas.Prefetch, RequestedAt: time.Now(), Version: 1,
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	change := func(field string, v any) []byte {
		var m map[string]any
		if err := json.Unmarshal(valid, &m); err != nil {
			t.Fatal(err)
		}
		m[field] = v
		out, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	poison := map[schemas.DeadLetterReason][][]byte{
		schemas.Undecodable:     {{0xff, 0x00}, []byte("{"), change("priority", "MEDIUM"), nil},
		schemas.UnknownMajor:    {change("schemaVersion", "3.0")},
		schemas.OversizedRecord: {append(bytes.Repeat([]byte(" "), 900<<10), valid...)},
		schemas.InvalidRequest:  {change("facet", "union"), change("source", "github"), change("key", "a b")},
	}
	want := map[string]schemas.DeadLetterReason{}
	headers := []kgo.RecordHeader{{Key: "traceparent", Value: []byte("tp")}, {Key: "odd", Value: []byte{0}}}
	for reason, values := range poison {
		for _, value := range values {
			r.produce(schemas.Low, kgo.Record{Key: []byte("k"), Value: value, Headers: headers})
			want[string(value)] = reason
		}
	}
	r.work(schemas.Low)
	r.enqueue("b", schemas.Low, schemas.Prefetch)
	r.untilStored("b")
	r.untilCommitted(schemas.Low)
	deadLetters := r.deadLetters()
	if len(deadLetters) != len(want) {
		t.Errorf("dead letters: got %d, want %d", len(deadLetters), len(want))
	}
	for _, d := range deadLetters {
		if want[string(d.Value)] != d.Reason || string(d.Key) != "k" || d.Attempts != 0 || d.Error == "" ||
			d.Topic != "nexon.update-priority-low" || d.Group != "nexon.low-worker" || d.Worker != "worker" {
			t.Errorf("dead letter: got %+v, want %s of k by the low worker, with an error and without attempts", d, want[string(d.Value)])
		}
		if len(d.Headers) != 2 || d.Headers[0].Key != "traceparent" || string(d.Headers[1].Value) != "\x00" {
			t.Errorf("headers: got %+v, want them unchanged", d.Headers)
		}
	}
	if n := r.upstream.Stats().Arrivals; n != 1 {
		t.Errorf("calls: got %d, want 1", n)
	}
}

func TestDeadLetter_HasSampleOfBadAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault    simulator.Fault
		reason   schemas.DeadLetterReason
		attempts int
		sample   string
		status   int
	}{
		// The entity is called a second time to confirm that the failure is its own.
		{simulator.Fault{Kind: simulator.HTML200}, schemas.ParseError, 2, "<", 200},
		{simulator.Fault{Kind: simulator.BadJSON}, schemas.ParseError, 2, "{", 200},
		{simulator.Fault{Kind: simulator.Deep, Depth: 100_000}, schemas.ParseError, 2, "", 200},
		{simulator.Fault{Kind: simulator.Oversize, Bytes: 2 << 20}, schemas.OversizedAnswer, 2, "{", 200},
		{simulator.Fault{Kind: simulator.BadParameter}, schemas.Upstream4xx, 2, "OPENAPI00004", 400},
		{simulator.Fault{Kind: simulator.InternalError}, schemas.Upstream5xx, 3, "OPENAPI00001", 500},
		{simulator.Fault{Kind: simulator.Reset}, schemas.Unreachable, 3, "", 200},
	} {
		t.Run(string(c.fault.Kind), func(t *testing.T) {
			r := newRig(t)
			r.facet(func(f *source.Facet) { f.Retry = nil })
			r.work(schemas.High)
			r.enqueue("a", schemas.High, schemas.CacheMiss)
			r.enqueue("good", schemas.High, schemas.CacheMiss) // makes entity "good" known-good, so that the worker can attribute the failure of "a"
			r.untilStored("a", "good")
			r.untilCommitted(schemas.High)
			before, _ := r.snapshot("a")

			c.fault.Key = "^a$"
			r.control(simulator.Control{Faults: []simulator.Fault{c.fault}})
			r.enqueue("a", schemas.High, schemas.UserRequest)
			r.untilCommitted(schemas.High)
			deadLetters := r.deadLetters()
			if len(deadLetters) != 1 {
				t.Fatalf("dead letters: got %d, want 1", len(deadLetters))
			}
			d := deadLetters[0]
			if d.Reason != c.reason || d.Attempts != c.attempts || !strings.Contains(string(d.Sample), c.sample) ||
				(d.Status != c.status && d.Status != 0) || len(d.Headers) != 1 || string(d.Headers[0].Value) != "trace-a" {
				t.Errorf("dead letter: got %s after %d attempts, status %d: %s; sample %.60q, want %s after %d, status %d or 0, sample %q",
					d.Reason, d.Attempts, d.Status, d.Error, d.Sample, c.reason, c.attempts, c.status, c.sample)
			}
			if after, _ := r.snapshot("a"); after.State != before.State {
				t.Errorf("snapshot: got %+v, want it unchanged", after.State)
			}
			if lock := r.lock("a"); lock != "" {
				t.Errorf("lock: got %q, want none", lock)
			}
			again := r.producer.Enqueue(t.Context(), producer.Request{Entity: entity("a"), Lane: schemas.High, Reason: schemas.Stale})
			if again.Outcome != producer.Held || again.HoldReason != schemas.HoldFailed {
				t.Errorf("read of the failed entity: got %+v, want it held as failed", again)
			}
		})
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

func TestStop_FinishesSentCalls(t *testing.T) {
	r := newRig(t)
	r.control(simulator.Control{Latency: &simulator.Range{Min: 5 * time.Millisecond, Max: 60 * time.Millisecond}})
	keys := keysOf("k", 200)
	r.enqueueAll(keys, schemas.Low, schemas.Prefetch)
	for range 3 {
		before := r.db.wrote.Load()
		stop := r.work(schemas.Low, func(c *consumer.Config) { c.MaxInFlight = 8 })
		r.until("some writes", func() bool { return r.db.wrote.Load() >= before+50 })
		stop()
	}
	r.work(schemas.Low)
	r.untilStored(keys...)
	r.untilCommitted(schemas.Low)
	if stats := r.upstream.Stats(); stats.Arrivals != 200 {
		t.Errorf("calls: got %d for 200 entities, want 200", stats.Arrivals)
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

func TestDeadLetter_FailedWriteHoldsRecord(t *testing.T) {
	r := newRig(t)
	var refuse atomic.Bool
	refuse.Store(true)
	refused := make(chan struct{}, 100)
	deadLetters := r.topicID(schemas.DeadLetterTopic("nexon"))
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		if !refuse.Load() || len(p.Topics) == 0 || p.Topics[0].TopicID != deadLetters {
			return nil, nil, false
		}
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range p.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for _, partition := range topic.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = partition.Partition, kerr.TopicAuthorizationFailed.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return resp, nil, true
	})
	r.produce(schemas.Low, kgo.Record{Value: []byte("poison")})
	r.work(schemas.Low)
	<-refused
	<-refused
	if r.lag(schemas.Low) != 1 {
		t.Error("the poisoned record was committed without its dead letter")
	}
	refuse.Store(false)
	r.untilCommitted(schemas.Low)
	if n := len(r.deadLetters()); n != 1 {
		t.Errorf("dead letters: got %d, want 1", n)
	}
}

func TestStop_ReportsDrainTimeout(t *testing.T) {
	r := newRig(t)
	r.db.down.Store(false)
	config := consumer.DefaultConfig(schemas.High)
	config.DrainTimeout = 10 * time.Millisecond
	w, err := consumer.New(config, r.source, schemas.High, r.deps())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	r.requests.noSettle.Store(true)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	stop()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "read again") {
		t.Errorf("stop: got %v, want a drain timeout", err)
	}
	if r.lag(schemas.High) != 1 {
		t.Error("an unsettled request was committed")
	}
}
