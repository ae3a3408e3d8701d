package consumer_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

func TestWorker_AcceptsBinaryHeader(t *testing.T) {
	r := newRig(t)
	pg := r.postgres()
	r.upstreamOf(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Etag"] = []string{"\"caf\xe9\""}
		w.Header()["Last-Modified"] = []string{strings.Repeat("x", 4000)}
		_, _ = w.Write([]byte(`{"x":1}`))
	})
	r.run(r.worker(consumer.DefaultConfig(schemas.High), pg, permits{r.limiter}).Run)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	if s, err := pg.Get(t.Context(), entity("a")); err != nil || s.ETag != "" || s.LastModified != "" {
		t.Errorf("snapshot: got %+v, %v, want it without a validator", s.State, err)
	}
}

func TestPermit_ExpiringRepeatedlyIsLimited(t *testing.T) {
	r := newRig(t)
	p := &expiringPermits{}
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, p).Run)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.until("a second round", func() bool { return p.asked.Load() > 6 })
	if got := p.asked.Load(); got > 30 {
		t.Errorf("permits: got %d requests, want at most 30", got)
	}
	if calls := r.upstream.Stats().Arrivals; calls != 0 || r.lag(schemas.High) != 1 {
		t.Errorf("calls and lag: got %d and %d, want 0 and 1", calls, r.lag(schemas.High))
	}
}

func TestUnknownVersion_FetchSatisfiesEarlierRequests(t *testing.T) {
	r := newRig(t)
	for range 10 {
		request := schemas.UpdateRequest{EventID: "e", Entity: entity("a"), Lane: schemas.High, Reason: schemas.UserRequest, RequestedAt: time.Now()}
		value, err := request.Encode()
		if err != nil {
			t.Fatal(err)
		}
		r.produce(schemas.High, kgo.Record{Key: request.RecordKey(), Value: value})
	}
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if calls := r.upstream.Stats().Arrivals; calls != 1 {
		t.Errorf("calls: got %d, want 1", calls)
	}
}

func TestCorruptVersion_DoesNotBlockEntity(t *testing.T) {
	r := newRig(t)
	r.work(schemas.High)
	request := schemas.UpdateRequest{
		EventID: "e", Entity: entity("a"), Lane: schemas.High, Reason: schemas.CacheMiss, RequestedAt: time.Now(), Version: schemas.MaxVersion,
	}
	value, err := request.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.produce(schemas.High, kgo.Record{Key: request.RecordKey(), Value: value})
	r.untilStored("a")
	r.untilCommitted(schemas.High)
	first, _ := r.snapshot("a")
	r.enqueue("a", schemas.High, schemas.UserRequest)
	r.until("a later check", func() bool { s, _ := r.snapshot("a"); return s.Version > first.Version })
}

func TestMisroutedRecord_LeavesOtherSourceUnchanged(t *testing.T) {
	r := newRig(t)
	other := schemas.Entity{Source: "github", Facet: "repo", Key: "a"}
	if err := r.rdb.HSet(t.Context(), "upd:{"+other.String()+"}", "lock", "HIGH 5 99999999999999 CONFIRMED").Err(); err != nil {
		t.Fatal(err)
	}
	request := schemas.UpdateRequest{EventID: "e", Entity: other, Lane: schemas.High, Reason: schemas.Stale, RequestedAt: time.Now(), Version: 9}
	value, err := request.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.produce(schemas.High, kgo.Record{Value: value})
	r.work(schemas.High)
	r.untilCommitted(schemas.High)
	if lock, err := r.rdb.HGet(t.Context(), "upd:{"+other.String()+"}", "lock").Result(); err != nil || !strings.HasPrefix(lock, "HIGH 5") {
		t.Errorf("lock: got %q, %v, want the prefix %q", lock, err, "HIGH 5")
	}
	if len(r.deadLetters()) != 1 {
		t.Error("got no dead letter, want one")
	}
}

func TestDeadLetter_PublishTimesOut(t *testing.T) {
	r := newRig(t)
	reached := r.blockProduce(schemas.RequestTopic("nexon", schemas.High))
	if got := r.producer.Enqueue(t.Context(), requestFor("a")); !got.Queued() {
		t.Fatalf("enqueue: got %+v, want queued", got)
	}
	<-reached
	r.until("the rollback", func() bool { return r.lock("a") == "" })
}

func TestCorruptVersion_DoesNotOutrankOthers(t *testing.T) {
	r := newRig(t)
	r.facet(func(f *source.Facet) { f.Retry = nil })
	r.fault(simulator.InternalError, "^a$")
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	request := schemas.UpdateRequest{
		EventID: "01a1fa17-179d-7dd3-88c6-3b120333ab6d", Entity: entity("a"), Lane: schemas.High, Reason: schemas.Stale,
		RequestedAt: time.Now(), Version: 1 << 52,
	}
	value, err := request.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.produce(schemas.High, kgo.Record{Key: request.RecordKey(), Value: value})
	r.untilCommitted(schemas.High)
	if s := r.status("a"); s.State != store.Failed || s.Version > time.Now().Add(time.Hour).UnixMilli() {
		t.Errorf("status: got %+v, want FAILED with a current version", s)
	}
	r.fault("", "")
	r.enqueue("a", schemas.High, schemas.UserRequest)
	r.untilStored("a")
	r.until("the end of the row", func() bool { return r.status("a").State == "" })
}
