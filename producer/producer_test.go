package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

type rig struct {
	*testing.T
	*Producer
	kafka *kfake.Cluster
	rdb   redis.UniversalClient
	stop  func() error // function that stops the producer's Run
	name  string       // name of the source, different in each test
}

func newRig(t *testing.T, rdb redis.UniversalClient, maxBuffered int) *rig {
	t.Helper()
	r := &rig{T: t, rdb: rdb, name: servicetest.Name("nexon")}
	var topics []string
	for _, topic := range schemas.Topics(r.name) {
		topics = append(topics, topic.Name)
	}
	var err error
	r.kafka, err = kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topics...), kfake.SleepOutOfOrder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	client, err := kgo.NewClient(append(ClientOptions(maxBuffered), kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.DisableClientMetrics())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r.Producer = New(rdb, client, maxBuffered, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), observe.Tracer{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Producer.Run(ctx) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	return r
}

func eachRedis(t *testing.T, test func(r *rig)) {
	t.Helper()
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) { test(newRig(t, rdb, 1000)) })
}

func (r *rig) request(key string, lane schemas.Lane, reason schemas.Reason) Request {
	return Request{Entity: schemas.Entity{Source: r.name, Facet: "character", Key: key}, Lane: lane, Reason: reason}
}

// mustEnqueue enqueues a request and fails the test if the outcome is not `want`.
func (r *rig) mustEnqueue(want Outcome, req Request) Result {
	r.Helper()
	got := r.Enqueue(r.Context(), req)
	if got.Outcome != want || got.Err != nil {
		r.Fatalf("%+v gave %+v, want %s", req, got, want)
	}
	return got
}

// records reads n records of the lane.
func (r *rig) records(lane schemas.Lane, n int) []*kgo.Record {
	r.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(r.kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.ConsumeTopics(schemas.RequestTopic(r.name, lane)))
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	var all []*kgo.Record
	for len(all) < n {
		fetches := c.PollFetches(r.Context())
		if err := fetches.Err(); err != nil {
			r.Fatal(err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func (r *rig) field(e schemas.Entity, name string) string {
	r.Helper()
	s, err := r.rdb.HGet(r.Context(), key(e), name).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.Fatal(err)
	}
	return s
}

// waitUntilConfirmed waits until no publish is in flight.
func (r *rig) waitUntilConfirmed() {
	r.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	limit := time.After(30 * time.Second)
	for r.buffered.Load() > 0 {
		select {
		case <-look.C:
		case <-limit:
			r.Fatal("timeout: publishes remain in flight")
		}
	}
}

func TestEnqueue_PublishesAndConfirmsTheLock(t *testing.T) {
	eachRedis(t, func(r *rig) {
		for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
			req := r.request("가/a "+string(lane), lane, schemas.Stale)
			req.Params, req.Depth = map[string]string{"ocid": "1"}, 2
			req.CorrelationID, req.TraceParent = "corr", "00-trace"
			result := r.mustEnqueue(Published, req)
			record := r.records(lane, 1)[0]
			request, err := schemas.DecodeUpdateRequest(record.Value)
			if err != nil {
				r.Fatal(err)
			}
			if request.Entity != req.Entity || request.Version != result.Number || request.Lane != lane || request.Reason != schemas.Stale ||
				request.CorrelationID != "corr" || request.Params["ocid"] != "1" || request.Depth != 2 || len(request.EventID) != 36 || request.EventID[14] != '7' {
				r.Errorf("got %+v, want the request as enqueued", request)
			}
			if string(record.Key) != "character/"+req.Entity.Key || len(record.Headers) != 1 || string(record.Headers[0].Value) != "00-trace" {
				r.Errorf("got record key %q, headers %v, want the entity and the trace parent", record.Key, record.Headers)
			}
			r.waitUntilConfirmed()
			if lock := r.field(req.Entity, "lock"); !strings.HasPrefix(lock, string(lane)+" "+fmt.Sprint(result.Number)) || !strings.HasSuffix(lock, "CONFIRMED") {
				r.Errorf("got lock %q, want CONFIRMED", lock)
			}
		}
	})
}

func TestEnqueue_ThousandRequestsAreOneRecord(t *testing.T) {
	eachRedis(t, func(r *rig) {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				requests := make([]Request, 100)
				for i := range requests {
					requests[i] = r.request("a", schemas.High, schemas.CacheMiss)
				}
				for _, got := range r.EnqueueAll(r.Context(), requests) {
					if got.Err != nil {
						r.Error(got.Err)
					}
				}
			})
		}
		wg.Wait()
		r.mustEnqueue(Published, r.request("the last", schemas.High, schemas.CacheMiss))
		r.waitUntilConfirmed()
		if n := len(r.records(schemas.High, 2)); n != 2 {
			r.Errorf("got %d records, want 2", n)
		}
		if got := testutil.ToFloat64(r.metrics.hits); got != 999 {
			r.Errorf("got %v hits, want 999", got)
		}
	})
}

func TestEnqueueAll_PublishesABatch(t *testing.T) {
	eachRedis(t, func(r *rig) {
		requests := make([]Request, 500)
		for i := range requests {
			requests[i] = r.request(fmt.Sprint(i%400), schemas.Low, schemas.Prefetch)
		}
		count := map[Outcome]int{}
		for _, got := range r.EnqueueAll(r.Context(), requests) {
			count[got.Outcome]++
		}
		if count[Published] != 400 || count[Pending] != 100 {
			r.Errorf("outcomes: got %v, want 400 PUBLISHED and 100 PENDING", count)
		}
		if n := len(r.records(schemas.Low, 400)); n != 400 {
			r.Errorf("got %d records, want 400", n)
		}
	})
}

// failProduce lets the broker reject every record with this error code.
func (r *rig) failProduce(code int16) {
	r.kafka.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		return servicetest.RefuseProduce(req.(*kmsg.ProduceRequest), code), nil, true
	})
}

func TestEnqueue_FailedPublishIsRolledBack(t *testing.T) {
	eachRedis(t, func(r *rig) {
		r.failProduce(kerr.TopicAuthorizationFailed.Code)
		req := r.request("a", schemas.High, schemas.UserRequest)
		req.Cooldown = time.Hour
		for range 2 { // a request whose publish failed must start no cool-down, so the second try must not be refused
			r.mustEnqueue(Published, req)
			r.waitUntilConfirmed()
			if lock := r.field(req.Entity, "lock"); lock != "" {
				r.Errorf("got lock %q after a failed publish, want none", lock)
			}
		}
		if got := testutil.ToFloat64(r.metrics.sendFailed); got != 2 {
			r.Errorf("got %v failed sends, want 2", got)
		}
	})
}

func TestEnqueue_UserRequestHasACooldown(t *testing.T) {
	eachRedis(t, func(r *rig) {
		req := r.request("a", schemas.High, schemas.UserRequest)
		req.Cooldown = time.Hour
		settle := func(number int64) {
			if err := r.Settle(r.Context(), []schemas.End{{Entity: req.Entity, Number: number, Hold: schemas.HoldFailed, HoldFor: time.Hour}}); err != nil {
				r.Fatal(err)
			}
		}
		first := r.mustEnqueue(Published, r.request("a", schemas.High, schemas.CacheMiss))
		r.waitUntilConfirmed()
		settle(first.Number)
		if got := r.mustEnqueue(Held, r.request("a", schemas.High, schemas.CacheMiss)); got.HoldReason != schemas.HoldFailed || time.Until(got.Until) < time.Minute {
			r.Errorf("got %+v, want HELD for at least a minute", got)
		}
		refresh := r.mustEnqueue(Published, req)
		r.waitUntilConfirmed()
		settle(refresh.Number)
		if got := r.mustEnqueue(Cooling, req); time.Until(got.Until) < time.Minute || got.Queued() {
			r.Errorf("got %+v, want COOLING for at least a minute", got)
		}
		req.Reason = schemas.Replay
		r.mustEnqueue(Published, req)
	})
}

func TestEnqueue_FullBufferLeavesNoLock(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 5)
	release := make(chan struct{})
	r.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.SleepControl(func() { <-release })
		return nil, nil, false
	})
	for i := range 5 { // Enqueue returns although Kafka does not respond
		r.mustEnqueue(Published, r.request(fmt.Sprint(i), schemas.High, schemas.CacheMiss))
	}
	req := r.request("one more", schemas.High, schemas.CacheMiss)
	if got := r.Enqueue(t.Context(), req); !errors.Is(got.Err, ErrBufferFull) || got.Queued() {
		t.Errorf("full buffer: got %+v, want ErrBufferFull", got)
	}
	if lock := r.field(req.Entity, "lock"); lock != "" {
		t.Errorf("got lock %q after a rejected request, want none", lock)
	}
	close(release)
	r.waitUntilConfirmed()
	r.mustEnqueue(Published, req)
}

func TestRun_FlushesAtShutdown(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 1000)
	for i := range 100 {
		r.mustEnqueue(Published, r.request(fmt.Sprint(i), schemas.Low, schemas.Prefetch))
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.records(schemas.Low, 100)); n != 100 {
		t.Errorf("got %d records, want 100", n)
	}
	for i := range 100 {
		if lock := r.field(r.request(fmt.Sprint(i), "", "").Entity, "lock"); !strings.HasSuffix(lock, "CONFIRMED") {
			t.Errorf("got lock %q, want CONFIRMED", lock)
		}
	}
	if got := r.Enqueue(t.Context(), r.request("late", schemas.High, schemas.CacheMiss)); !errors.Is(got.Err, ErrStopped) {
		t.Errorf("after the shutdown: got %+v, want ErrStopped", got)
	}
}

func TestEnqueue_PublishesNothingWithoutRedis(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 1000)
	m.SetError("LOADING Redis is loading")
	for _, got := range r.EnqueueAll(t.Context(), []Request{r.request("a", schemas.High, schemas.CacheMiss), r.request("b", schemas.High, schemas.CacheMiss)}) {
		if got.Err == nil || got.Queued() {
			t.Errorf("without Redis: got %+v, want an error", got)
		}
	}
	m.SetError("")
	r.mustEnqueue(Published, r.request("a", schemas.High, schemas.CacheMiss))
	if n := len(r.records(schemas.High, 1)); n != 1 {
		t.Errorf("got %d records, want 1", n)
	}
	if r.waitUntilConfirmed(); r.buffered.Load() != 0 {
		t.Errorf("got %d reserved slots, want 0", r.buffered.Load())
	}
}

func TestEnqueue_InvalidRecordIsRolledBack(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 1000)
	req := r.request("a\nb", schemas.High, schemas.CacheMiss)
	if got := r.Enqueue(t.Context(), req); got.Err == nil || !strings.Contains(got.Err.Error(), "control character") {
		t.Errorf("got %+v, want an error about the control character", got)
	}
	r.waitUntilConfirmed()
	if lock := r.field(req.Entity, "lock"); lock != "" {
		t.Errorf("got lock %q, want none", lock)
	}
}

func TestDecodeAcquire_RejectsInvalidReplies(t *testing.T) {
	for _, reply := range [][]any{nil, {"PUBLISHED"}, {"MAYBE", int64(1), "", int64(0)}, {int64(1), "x", "", int64(0)}} {
		if got, err := decodeAcquire(reply); err == nil {
			t.Errorf("%v: got %+v, want an error", reply, got)
		}
	}
}

func TestEnqueue_CompletesAfterCancellation(t *testing.T) {
	eachRedis(t, func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel() // the caller cancels before Redis replies
		req := r.request("a", schemas.High, schemas.CacheMiss)
		if got := r.Enqueue(ctx, req); got.Outcome != Published {
			r.Fatalf("got %+v, want PUBLISHED", got)
		}
		r.waitUntilConfirmed()
		if n := len(r.records(schemas.High, 1)); n != 1 || !strings.HasSuffix(r.field(req.Entity, "lock"), "CONFIRMED") {
			r.Errorf("got %d records and lock %q, want 1 and CONFIRMED", n, r.field(req.Entity, "lock"))
		}
	})
}

func TestEnqueueAll_SplitsByBufferSize(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 10)
	requests := make([]Request, 95)
	for i := range requests {
		requests[i] = r.request(fmt.Sprint(i), schemas.Low, schemas.Prefetch)
	}
	published := 0
	for _, got := range r.EnqueueAll(t.Context(), requests) {
		if got.Outcome == Published {
			published++
		} else if !errors.Is(got.Err, ErrBufferFull) {
			t.Errorf("got %+v, want ErrBufferFull", got)
		}
	}
	if published < 10 {
		t.Errorf("got %d of 95 published, want at least 10", published)
	}
}

func TestEnqueue_OversizedRecordIsRolledBack(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newRig(t, rdb, 10)
	req := r.request("a", schemas.High, schemas.CacheMiss)
	req.Params = map[string]string{"p": strings.Repeat("x", schemas.MaxRequestBytes)}
	if got := r.Enqueue(t.Context(), req); got.Err == nil || !strings.Contains(got.Err.Error(), "at most 65536 are allowed") {
		t.Errorf("got %+v, want an error about the size", got)
	}
	r.waitUntilConfirmed()
	if lock := r.field(req.Entity, "lock"); lock != "" {
		t.Errorf("got lock %q, want none", lock)
	}
}
