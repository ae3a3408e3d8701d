package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

// upstreamOf replaces the simulator with another upstream.
func (r *rig) upstreamOf(h http.HandlerFunc, change ...func(*source.Config)) {
	r.Helper()
	server := httptest.NewServer(h)
	r.Cleanup(server.Close)
	c := r.config
	c.BaseURL = server.URL
	for _, f := range change {
		f(&c)
	}
	r.source = r.newSource(c)
}

// worker returns a worker with this configuration, store, permits and Kafka settings.
func (r *rig) worker(c consumer.Config, st consumer.Store, p consumer.Permits, kafka ...kgo.Opt) *consumer.Worker {
	r.Helper()
	deps := r.deps()
	deps.Store, deps.Permits = st, p
	if len(kafka) > 0 {
		deps.Kafka = func(string) []kgo.Opt { return kafka }
	}
	w, err := consumer.New(c, r.source, schemas.High, deps)
	if err != nil {
		r.Fatal(err)
	}
	return w
}

func (r *rig) postgres() *postgres.Store {
	r.Helper()
	url := servicetest.Postgres(r.T)
	if _, err := postgres.Migrate(r.Context(), url); err != nil {
		r.Fatal(err)
	}
	pg, err := postgres.Open(r.Context(), url)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(pg.Close)
	return pg
}

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

// rejectingStore behaves like a database that can't store the content of one entity: it rejects all
// writes of the entity `key`.
type rejectingStore struct {
	consumer.Store
	key string
}

func (s rejectingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	for _, w := range writes {
		if w.Entity.Key == s.key {
			return nil, fmt.Errorf("write: %w", store.ErrRejected)
		}
	}
	return s.Store.Write(ctx, writes)
}

func TestWriter_IsolatesRejectedRow(t *testing.T) {
	r := newRig(t)
	keys := append([]string{"bad"}, keysOf("k", 20)...)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	c := consumer.DefaultConfig(schemas.High)
	c.Linger = 200 * time.Millisecond // a linger so long that all results are written in one batch
	r.run(r.worker(c, rejectingStore{r.db, "bad"}, permits{r.limiter}).Run)
	r.untilStored(keys[1:]...)
	r.untilCommitted(schemas.High)
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.Unstorable || string(l[0].Key) != "character/bad" {
		t.Errorf("dead letters: got %+v, want 1 UNSTORABLE of character/bad", l)
	}
}

func TestNotModified_UnsolicitedIsBadContent(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Query().Get("ocid") == "good" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		calls.Add(1)
		w.WriteHeader(http.StatusNotModified)
	})
	r.work(schemas.High)
	r.enqueue("good", schemas.High, schemas.CacheMiss)
	r.untilStored("good")
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilCommitted(schemas.High)
	if l := r.deadLetters(); len(l) != 1 || l[0].Reason != schemas.ParseError || calls.Load() != 2 {
		t.Errorf("calls and dead letters: got %d and %+v, want 2 and 1 PARSE_ERROR", calls.Load(), l)
	}
}

func TestNotModified_WithoutSnapshotIsFetchedInFull(t *testing.T) {
	r := newRig(t)
	var conditional, full atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if req.Header.Get("If-None-Match") == `"v1"` {
			if conditional.Add(1) == 2 { // before the second "not modified" response, the test deletes the snapshot
				if err := r.db.Delete(context.Background(), entity("a")); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusNotModified)
			return
		}
		full.Add(1)
		_, _ = w.Write([]byte(`{"x":1}`))
	}, func(c *source.Config) {
		f := c.Facets["character"]
		f.Conditional = true
		c.Facets = map[string]source.Facet{"character": f}
	})
	r.work(schemas.High)
	for round := range 3 {
		before, _ := r.snapshot("a")
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		if s, _ := r.snapshot("a"); !s.HasContent() || s.ETag != `"v1"` {
			t.Errorf("round %d: got %+v, want content with the ETag %s", round, s.State, `"v1"`)
		}
	}
	if conditional.Load() != 2 || full.Load() != 2 || len(r.deadLetters()) != 0 {
		t.Errorf("conditional calls, full calls and dead letters: got %d, %d and %d, want 2, 2 and 0",
			conditional.Load(), full.Load(), len(r.deadLetters()))
	}
}

// A facet that becomes raw must fetch its content again: readers do not get the stored JSON, and a
// response "not modified" would keep it.
func TestNotModified_OtherMediaTypeIsFetchedInFull(t *testing.T) {
	r := newRig(t)
	var conditional atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		if req.Header.Get("If-None-Match") == `"v1"` {
			conditional.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write([]byte("<a/>"))
	}, func(c *source.Config) {
		f := c.Facets["character"]
		f.Conditional, f.Raw, f.Select, f.Ignore = true, &source.Raw{MediaType: "application/xml", WellFormed: "xml"}, nil, nil
		c.Facets = map[string]source.Facet{"character": f}
	})
	_, err := r.db.Write(t.Context(), []store.Write{{
		Entity: entity("a"), Version: 1, CheckedAt: time.Now().Add(-time.Hour), Hash: store.Hash{1}, ETag: `"v1"`,
		Payload: func() (store.Payload, error) { return store.Encode([]byte(`{"doc":{}}`)), nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.work(schemas.High)
	for want := range 2 {
		before, _ := r.snapshot("a")
		r.enqueue("a", schemas.High, schemas.UserRequest)
		r.until("a later check", func() bool { s, ok := r.snapshot("a"); return ok && s.Version > before.Version })
		r.untilCommitted(schemas.High)
		s, _ := r.snapshot("a")
		if text, err := s.Decode(nil); err != nil || string(text) != "<a/>" || s.MediaType != "application/xml" || conditional.Load() != int64(want) {
			t.Errorf("got %q as %q, %v, %d conditional calls, want <a/> as XML and %d", text, s.MediaType, err, conditional.Load(), want)
		}
	}
}

// wideCompressor compresses with a window of several MiB, like Kafka clients other than franz-go.
type wideCompressor struct{}

func (wideCompressor) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		panic(err)
	}
	defer func() { _ = e.Close() }()
	return e.EncodeAll(src, nil), kgo.CodecZstd
}

func TestDeadLetter_FitsLargeCompressedRecord(t *testing.T) {
	r := newRig(t)
	brokers := servicetest.Kafka(t)
	name := servicetest.Name("large")
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics(), kgo.ProducerBatchMaxBytes(64<<20), kgo.WithCompressor(wideCompressor{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	for _, topic := range schemas.Topics(name) {
		most := strconv.Itoa(topic.MaxMessageBytes)
		if _, err := admin.CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &most}, topic.Name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = admin.DeleteTopic(context.Background(), topic.Name) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	repeated := bytes.Repeat(noise(200<<10), 10)     // a value that compresses well only with a large window
	dense := []byte(fmt.Sprintf("%x", noise(1<<19))) // a value that compresses to half of its size, and then fits the topic
	// the last value is small: if its dead letter arrives, the two large values have not blocked the
	// partition
	for _, value := range [][]byte{repeated, dense, []byte("{")} {
		record := &kgo.Record{Topic: schemas.RequestTopic(name, schemas.High), Key: []byte("k"), Value: value}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	config := r.config
	if r.source, err = source.New(name, config, nil, 4); err != nil {
		t.Fatal(err)
	}
	r.run(r.worker(consumer.DefaultConfig(schemas.High), r.db, permits{r.limiter}, kgo.SeedBrokers(brokers...), kgo.DisableClientMetrics()).Run)
	deadLetters := 0
	r.until("a dead letter for each", func() bool {
		ends, err := admin.ListEndOffsets(t.Context(), schemas.DeadLetterTopic(name))
		if err != nil {
			t.Fatal(err)
		}
		o, _ := ends.Lookup(schemas.DeadLetterTopic(name), 0)
		deadLetters = int(o.Offset)
		return deadLetters == 3
	})
}

// blockProduce makes the embedded broker leave produce requests to the topic unanswered until the
// test ends. The returned channel is closed when the first such request arrives.
func (r *rig) blockProduce(topic string) <-chan struct{} {
	r.Helper()
	id := r.topicID(topic)
	hang, reached := make(chan struct{}), make(chan struct{}, 100)
	r.Cleanup(func() { close(hang) })
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		produce, _ := req.(*kmsg.ProduceRequest)
		for _, t := range produce.Topics {
			if t.Topic == topic || t.TopicID == id {
				reached <- struct{}{}
				r.kafka.SleepControl(func() { <-hang })
			}
		}
		return nil, nil, false
	})
	return reached
}

func TestStop_DoesNotWaitForHangingBroker(t *testing.T) {
	r := newRig(t)
	reached := r.blockProduce(schemas.DeadLetterTopic("nexon"))
	r.produce(schemas.High, kgo.Record{Value: []byte("{")})
	c := consumer.DefaultConfig(schemas.High)
	c.DrainTimeout = 50 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	w := r.worker(c, r.db, permits{r.limiter})
	go func() { done <- w.Run(ctx) }()
	<-reached
	stop()
	select {
	case err := <-done:
		t.Logf("stopped with %v", err)
	case <-time.After(waitTimeout):
		t.Fatalf("stop: got none within %v, want one", waitTimeout)
	}
	if r.lag(schemas.High) != 1 {
		t.Error("the record was committed without its dead letter")
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

func TestWorker_BoundsMemoryForGrowingAnswers(t *testing.T) {
	r := newRig(t)
	const size, bound = 1 << 20, 4 << 20
	body := []byte(`{"x":"` + strings.Repeat("x", size) + `"}`)
	var inFlight, most atomic.Int64
	r.upstreamOf(func(w http.ResponseWriter, _ *http.Request) {
		n := inFlight.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		_, _ = w.Write(body)
		inFlight.Add(-1)
	}, func(c *source.Config) { c.MaxBody = 2 << 20 })
	keys := keysOf("k", 40)
	r.enqueueAll(keys, schemas.High, schemas.CacheMiss)
	c := consumer.DefaultConfig(schemas.High)
	c.MaxBodyBytes = bound
	r.run(r.worker(c, r.db, permits{r.limiter}).Run)
	r.untilStored(keys...)
	if most.Load() > bound/size+1 {
		t.Errorf("concurrent answers of 1 MiB within a limit of 4 MiB: got %d, want at most %d", most.Load(), bound/size+1)
	}
}

// expiringPermits grants permits that can never be spent, as if Redis answered too slowly.
type expiringPermits struct{ asked atomic.Int64 }

func (l *expiringPermits) Acquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	l.asked.Add(1)
	return expiredPermit{}, nil
}

func (l *expiringPermits) AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return l.Acquire(ctx, lane, c)
}

func (l *expiringPermits) Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (consumer.Permit, error) {
	return l.Acquire(ctx, lane, c)
}
func (l *expiringPermits) BackOff(time.Duration, time.Time) {}

func (l *expiringPermits) OpenBreaker(time.Duration, time.Duration, time.Time) {}

func (l *expiringPermits) CloseBreaker(time.Time) {}

func (l *expiringPermits) BreakerOpenSince(time.Time) bool { return false }

func (l *expiringPermits) HighPerSecond() float64             { return math.Inf(1) }
func (l *expiringPermits) LowReserve() float64                { return 0 }
func (l *expiringPermits) UntilBreakerOpens() context.Context { return context.Background() }

func (l *expiringPermits) BreakerClosed() <-chan struct{} { return always }

// always is a closed channel. A receive from it returns at once.
var always = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

type expiredPermit struct{}

func (expiredPermit) Spend() bool                                           { return false }
func (expiredPermit) Release()                                              {}
func (expiredPermit) Written()                                              {}
func (expiredPermit) Answered()                                             {}
func (expiredPermit) Credential() string                                    { return "" }
func (expiredPermit) IsProbe() bool                                         { return false }
func (expiredPermit) IsSourceProbe() bool                                   { return false }
func (expiredPermit) ReportEnd(source.CallResult)                           {}
func (expiredPermit) OpenScopeBreaker(string, time.Duration, time.Duration) {}
func (expiredPermit) ReportSuccess()                                        {}

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
