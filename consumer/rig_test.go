package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/retries"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
	"github.com/freshet/freshet/store/sqlite"
)

// waitTimeout bounds every wait for an event.
const waitTimeout = 2 * time.Minute

// rig is the setup of a test. It connects all parts on a request's path: producer, Kafka, worker,
// limiter, upstream and store. freshet's own parts are real. Kafka, Redis, the database and the
// upstream are embedded in the test. Tests inject faults between the parts.
type rig struct {
	*testing.T
	kafka       *kfake.Cluster
	admin       *kadm.Client
	rdb         redis.UniversalClient
	db          *faultyStore
	requests    *faultyRequests
	upstream    *simulator.Simulator
	config      source.Config
	source      *source.Source
	producer    *producer.Producer
	limiter     *limiter.Limiter
	retries     countingRetries
	realRetries *retries.Retries // set by a test whose retries are enqueued; nil means that retries are only counted
	changes     countingOutbox
	behind      fixedLag
	health      *consumer.Health
	metrics     *prometheus.Registry // metrics of the worker that was created last
}

func newRig(t *testing.T, kafka ...kfake.Opt) *rig {
	t.Helper()
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)
	return newRigOn(t, rdb, kafka...)
}

// newRigOn returns a test setup (rig) that uses this Redis.
func newRigOn(t *testing.T, rdb redis.UniversalClient, kafka ...kfake.Opt) *rig {
	t.Helper()
	r := &rig{T: t, rdb: rdb, health: consumer.NewHealth()}
	var err error
	r.kafka, err = kfake.NewCluster(append(kafka, kfake.NumBrokers(1), kfake.DefaultNumPartitions(4))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	client := r.client(producer.ClientOptions(1000)...)
	r.admin = kadm.NewClient(client)
	for _, topic := range schemas.Topics("nexon") {
		if _, err := r.admin.CreateTopic(t.Context(), 4, 1, nil, topic.Name); err != nil {
			t.Fatal(err)
		}
	}

	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r.db = &faultyStore{Store: db}
	r.requests = &faultyRequests{Requests: producer.NewCoalescer(rdb)}

	r.upstream = simulator.New(simulator.Config{})
	server := httptest.NewServer(r.upstream)
	t.Cleanup(func() { r.upstream.Close(); server.Close() })
	r.config = source.DefaultConfig()
	r.config.BaseURL = server.URL + "/maplestory/v1"
	r.config.MaxBody = 1 << 20
	r.config.Rules = []source.Rule{
		{Status: 400, Body: &source.Match{Name: "error.name", Equals: "OPENAPI00003"}, Class: source.NotFound},
		{Status: 400, Body: &source.Match{Name: "error.name", Equals: "OPENAPI00005"}, Class: source.AuthRefused},
		{Status: 400, Body: &source.Match{Name: "error.name", Equals: "OPENAPI00009"}, Class: source.NotReady},
	}
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"basic": {Path: "/character/basic?ocid={ocid}"}}
	f.Params = source.TextParams(map[string]string{"ocid": "{key}"})
	f.Ignore = []string{"*.date"}
	r.config.Facets = map[string]source.Facet{"character": f}
	r.source = r.newSource(r.config)

	// A short window makes the quiet period at the start of the test short. The limit of 500 calls a second
	// is low enough for the race detector: with more, permits expire before they are spent.
	quota := limiter.Config{Policies: []limiter.Policy{{Name: "test", Limit: 50, Window: limiter.Window(100 * time.Millisecond)}}}
	r.limiter, err = limiter.New("nexon", quota, limiter.Deps{Redis: rdb, Process: "test", Log: r.log(), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	r.run(r.limiter.Run)
	r.producer = producer.New(rdb, client, 1000, r.log(), prometheus.NewRegistry(), observe.Tracer{})
	r.run(r.producer.Run)
	return r
}

// log writes to the test's output, which is shown if the test fails.
func (r *rig) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{r.T}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type testWriter struct{ *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.Helper()
	w.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (r *rig) newSource(c source.Config) *source.Source {
	r.Helper()
	s, err := source.New("nexon", c, nil, 64)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(s.Close)
	return s
}

// run starts the function `do` in a goroutine. When stop is called or the test ends, run cancels
// the context of `do` and waits until `do` returns.
func (r *rig) run(do func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := do(ctx); err != nil {
			r.Errorf("run: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.Cleanup(stop)
	return stop
}

// facet changes the facet's settings before a worker starts.
func (r *rig) facet(change func(*source.Facet)) {
	r.Helper()
	f := r.config.Facets["character"]
	change(&f)
	r.config.Facets = map[string]source.Facet{"character": f}
	r.source = r.newSource(r.config)
}

// status returns an entity's stored failure status.
func (r *rig) status(key string) store.Status {
	r.Helper()
	all, err := r.db.Store.Statuses(r.Context(), []schemas.Entity{entity(key)})
	if err != nil {
		r.Fatal(err)
	}
	return all[0]
}

// deps returns the dependencies of the workers that the test starts. Retries and outbox events are
// only counted.
func (r *rig) deps() consumer.Deps {
	r.metrics = prometheus.NewRegistry()
	return consumer.Deps{
		Store: r.db, Requests: r.requests, Permits: permits{r.limiter}, Retries: r.retrier(), Outbox: &r.changes, Aliases: aliasEnqueuer{r.producer}, Lag: &r.behind, Health: r.health,
		Kafka: func(string) []kgo.Opt { return r.brokers() }, Log: r.log(), Metrics: r.metrics,
	}
}

func (r *rig) retrier() consumer.Retries {
	if r.realRetries != nil {
		return r.realRetries
	}
	return &r.retries
}

// aliasEnqueuer enqueues requests of aliases as package app does.
type aliasEnqueuer struct{ *producer.Producer }

func (d aliasEnqueuer) RequestAlias(ctx context.Context, r schemas.UpdateRequest, stored int64) (string, time.Time, error) {
	result := d.EnqueueAndWait(ctx, producer.Request{Entity: r.Entity, Lane: r.Lane, Reason: r.Reason, CorrelationID: r.CorrelationID, Floor: stored})
	if result.Outcome == producer.Held {
		return result.HoldReason, result.Until, nil
	}
	if result.Err == nil && !result.Queued() {
		return "", time.Time{}, errInjected
	}
	return "", time.Time{}, result.Err
}

// countingRetries counts the calls of WakeAt.
type countingRetries struct{ n atomic.Int64 }

func (s *countingRetries) WakeAt(context.Context, time.Time) { s.n.Add(1) }

// countingOutbox counts the calls of Notify.
type countingOutbox struct{ n atomic.Int64 }

func (s *countingOutbox) Notify() { s.n.Add(1) }

// fixedLag reports a fixed number of records as the backlog of HIGH. A negative number means that
// the backlog is unknown.
type fixedLag struct{ records atomic.Int64 }

func (b *fixedLag) Records(string, schemas.Lane) (int64, bool) {
	n := b.records.Load()
	return n, n >= 0
}

// work starts a worker. stop stops it cleanly.
func (r *rig) work(lane schemas.Lane, changes ...func(*consumer.Config)) (stop func()) {
	r.Helper()
	config := consumer.DefaultConfig(lane)
	config.DrainTimeout = waitTimeout
	for _, change := range changes {
		change(&config)
	}
	w, err := consumer.New(config, r.source, lane, r.deps())
	if err != nil {
		r.Fatal(err)
	}
	return r.run(w.Run)
}

// enqueue requests a refresh and expects that it is queued and acknowledged by Kafka.
func (r *rig) enqueue(key string, lane schemas.Lane, reason schemas.Reason) producer.Result {
	r.Helper()
	result := r.producer.Enqueue(r.Context(), producer.Request{
		Entity: entity(key), Lane: lane, Reason: reason, CorrelationID: "corr-" + key, TraceParent: "trace-" + key,
	})
	if !result.Queued() {
		r.Fatalf("request for %s: got %+v, want it queued", key, result)
	}
	r.until("the acknowledgement", func() bool { return !strings.HasSuffix(r.lock(key), "PENDING") })
	return result
}

func requestFor(key string) producer.Request {
	return producer.Request{Entity: entity(key), Lane: schemas.High, Reason: schemas.CacheMiss}
}

// enqueueAll requests many refreshes at once and expects that Kafka acknowledges them.
func (r *rig) enqueueAll(keys []string, lane schemas.Lane, reason schemas.Reason) {
	r.Helper()
	requests := make([]producer.Request, len(keys))
	for i, key := range keys {
		requests[i] = producer.Request{Entity: entity(key), Lane: lane, Reason: reason}
	}
	before := r.produced(lane)
	for i, result := range r.producer.EnqueueAll(r.Context(), requests) {
		if !result.Queued() {
			r.Fatalf("request for %s: got %+v, want it queued", keys[i], result)
		}
	}
	r.until("the acknowledgements", func() bool { return r.produced(lane) >= before+int64(len(keys)) })
}

func entity(key string) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: key}
}

// until calls the function `holds` repeatedly until it returns true. It must poll, because no
// single event covers the producer, Kafka, the worker and the store.
func (r *rig) until(what string, holds func() bool) {
	r.Helper()
	servicetest.WaitFor(r, waitTimeout, what, holds)
}

func (r *rig) snapshot(key string) (store.Snapshot, bool) {
	r.Helper()
	s, err := r.db.Get(r.Context(), entity(key))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		r.Fatal(err)
	}
	return s, err == nil
}

func (r *rig) untilStored(keys ...string) {
	r.Helper()
	for _, key := range keys {
		r.until("a snapshot of "+key, func() bool { _, ok := r.snapshot(key); return ok })
	}
}

// keysOf returns n keys: prefix0, prefix1 and so on.
func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(prefix, i)
	}
	return keys
}

// store writes a snapshot with the given number as its version, like a worker.
func (r *rig) store(key string, number int64) {
	r.Helper()
	_, err := r.db.Write(r.Context(), []store.Write{{
		Entity: entity(key), Version: number, CheckedAt: time.Now(),
		Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
	}})
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) control(c simulator.Control) {
	r.Helper()
	if err := r.upstream.Control(c); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) lock(key string) string {
	r.Helper()
	s, err := r.rdb.HGet(r.Context(), "upd:{nexon/character/"+key+"}", "lock").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		r.Fatal(err)
	}
	return s
}

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
