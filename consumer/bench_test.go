package consumer_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

// countingStore is a store that counts the results that were written.
type countingStore struct {
	*postgres.Store
	rows atomic.Int64
}

func (c *countingStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	results, err := c.Store.Write(ctx, writes)
	c.rows.Add(int64(len(results)))
	return results, err
}

const benchEvents = 3000

// document returns 17 KB of content, different for each key.
func document(key string) string {
	return fmt.Sprintf(`{"name":%q,"items":[%s1]}`, key, strings.Repeat(fmt.Sprintf(`{"id":%q,"value":"%08x"},`, key, sha256.Sum256([]byte(key))), 160))
}

// BenchmarkWorker measures how many entities a second a worker processes, from the record on the topic
// to the committed offset. For comparison, it also writes the same number of rows to the same database
// without a worker. Redis and PostgreSQL are real, and the upstream answers at once.
func BenchmarkWorker(b *testing.B) {
	through, pg := throughReal(b)
	var inWorker, bare time.Duration
	for n := 0; b.Loop(); n++ {
		inWorker += through(plainRun(observe.Tracer{}))
		bare += bareUpserts(b, pg, n)
	}
	perSecond := func(d time.Duration) float64 { return float64(benchEvents*b.N) / d.Seconds() }
	b.ReportMetric(perSecond(inWorker), "events/s")
	b.ReportMetric(perSecond(bare), "bare-upserts/s")
	b.ReportMetric(bare.Seconds()/inWorker.Seconds(), "×bare")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWorkerTraced compares the CPU time for each update request in three cases: without spans,
// with dropped spans, and with recorded spans. The three cases run in turn, each several times for a
// short period. The measured CPU time includes the fake broker and the fake upstream, which run in the
// same process.
func BenchmarkWorkerTraced(b *testing.B) {
	through, _ := throughReal(b)
	ways := []struct {
		name   string
		tracer observe.Tracer
		cpu    time.Duration
	}{
		{name: "off"},
		{name: "not-kept", tracer: observe.NewTracer(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample())))},
		{name: "kept", tracer: observe.NewTracer(sdk.NewTracerProvider(sdk.WithBatcher(tracetest.NewNoopExporter())))},
	}
	for b.Loop() {
		for i := range ways {
			before := cpuTime(b)
			through(plainRun(ways[i].tracer))
			ways[i].cpu += cpuTime(b) - before
		}
	}
	for _, w := range ways {
		b.ReportMetric(float64(w.cpu.Microseconds())/float64(benchEvents*b.N), "µs/event-"+w.name)
		b.ReportMetric(w.cpu.Seconds()/ways[0].cpu.Seconds(), "×off-"+w.name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkWorkerRenewing compares a worker whose credential is renewed with a worker whose credential
// is fixed. The two workers run in turn, each several times for a short period (a round). The
// credential is renewed once in each round. Each metric is the median of all rounds.
func BenchmarkWorkerRenewing(b *testing.B) {
	through, _ := throughReal(b)
	took, cpu := map[string][]time.Duration{}, map[string][]time.Duration{}
	ways := []string{"fixed", "renewing"}
	for b.Loop() {
		for _, way := range ways {
			before := cpuTime(b)
			run := plainRun(observe.Tracer{})
			run.credential = way
			took[way] = append(took[way], through(run))
			cpu[way] = append(cpu[way], cpuTime(b)-before)
		}
		slices.Reverse(ways)
	}
	ratio := func(all map[string][]time.Duration) float64 {
		return medianOf(all["fixed"]).Seconds() / medianOf(all["renewing"]).Seconds()
	}
	b.ReportMetric(benchEvents/medianOf(took["renewing"]).Seconds(), "events/s")
	b.ReportMetric(ratio(took), "×fixed")
	b.ReportMetric(ratio(cpu), "×fixed-cpu")
	b.ReportMetric(0, "ns/op")
}

func medianOf(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRun is a source whose facet f has benchEvents entities.
type benchRun struct {
	source     string
	facets     map[string]source.Facet
	tracer     observe.Tracer
	credential string // kind of the source's credential: fixed or renewing; empty means none
}

// plainRun returns a benchmark of new entities that need one document each. The key is a part of the
// URL.
func plainRun(tracer observe.Tracer) benchRun {
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"d": {Path: "/?id={key}"}}
	return benchRun{source: servicetest.Name("bench"), facets: map[string]source.Facet{"f": f}, tracer: tracer}
}

func (r benchRun) key(i int) string { return fmt.Sprint(r.source, i) }

// throughReal returns the function `through` and the store. Each call of `through` sends
// benchEvents events through a worker that uses real Redis and PostgreSQL, and returns how long
// that took.
func throughReal(b *testing.B) (through func(benchRun) time.Duration, pg *postgres.Store) {
	b.Helper()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.AllowAutoTopicCreation(), kfake.DefaultNumPartitions(24))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(kafka.Close)
	rdb := redis.NewClient(&redis.Options{Addr: servicetest.RedisAddress(b), MaxRetries: -1})
	b.Cleanup(func() { _ = rdb.Close() })
	url := servicetest.Postgres(b)
	if _, err := postgres.Migrate(b.Context(), url); err != nil {
		b.Fatal(err)
	}
	pg, err = postgres.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pg.Close)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/list" {
			_, _ = w.Write([]byte(listDocument(r.URL.Query().Get("id"))))
			return
		}
		_, _ = w.Write([]byte(document(r.URL.Query().Get("id"))))
	}))
	b.Cleanup(upstream.Close)
	return func(r benchRun) time.Duration { return r.throughWorker(b, kafka, rdb, pg, upstream.URL) }, pg
}

// throughWorker enqueues benchEvents requests and starts a worker. It returns the time between the
// first and the last result that the worker writes to the database.
func (r benchRun) throughWorker(b *testing.B, kafka *kfake.Cluster, rdb redis.UniversalClient, pg *postgres.Store, url string) time.Duration {
	b.Helper()
	name, tracer := r.source, r.tracer
	client, err := kgo.NewClient(append(append(producer.ClientOptions(benchEvents), tracer.Kafka()...), kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.DisableClientMetrics(), kgo.AllowAutoTopicCreation())...)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	prod := producer.New(rdb, client, benchEvents, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), tracer)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	produced := make(chan error, 1)
	go func() { produced <- prod.Run(ctx) }()
	requests := make([]producer.Request, benchEvents)
	for i := range requests {
		requests[i] = producer.Request{Entity: schemas.Entity{Source: name, Facet: "f", Key: r.key(i)}, Lane: schemas.Low, Reason: schemas.Prefetch}
	}
	for _, r := range prod.EnqueueAll(ctx, requests) {
		if !r.Queued() {
			b.Fatalf("enqueue: got %+v, want queued", r)
		}
	}
	if err := client.Flush(ctx); err != nil {
		b.Fatal(err)
	}

	config := source.DefaultConfig()
	config.BaseURL = url
	config.Facets = r.facets
	permits := consumer.Permits(freePermits{})
	var secrets map[string]string
	if r.credential != "" {
		permits = appPermits{}
		config.Auth = source.Auth{Header: "Authorization", Prefix: "Bearer "}
		config.Credentials = []source.Credential{{Name: "app", SecretEnv: "FIXED"}}
		secrets = map[string]string{"app": "a-fixed-credential"}
	}
	if r.credential == "renewing" {
		config.Credentials, secrets = []source.Credential{benchCredential(b)}, nil
	}
	src, err := source.New(name, config, secrets, 1024)
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	var tokens consumer.Tokens
	renew := func() {}
	if r.credential == "renewing" {
		tokens, renew = startBenchRenewal(b, ctx, src, config.Credentials[0], rdb, pg)
	}
	st := &countingStore{Store: pg}
	w, err := consumer.New(consumer.DefaultConfig(schemas.Low), src, schemas.Low, consumer.Deps{
		Store: st, Requests: producer.NewCoalescer(rdb), Permits: permits, Retries: &countingRetries{}, Lag: &fixedLag{}, Health: consumer.NewHealth(), Tokens: tokens,
		Walks: countingPages{collection.New(pg), st},
		Kafka: func(string) []kgo.Opt {
			return []kgo.Opt{kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.DisableClientMetrics()}
		},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Tracer: tracer,
	})
	if err != nil {
		b.Fatal(err)
	}
	worked := make(chan error, 1)
	wctx, done := context.WithCancel(b.Context())
	defer done()
	go func() { worked <- w.Run(wctx) }()
	var first time.Time
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for st.rows.Load() < benchEvents {
		<-look.C
		if first.IsZero() && st.rows.Load() > 0 {
			first = time.Now()
			renew()
		}
	}
	took := time.Since(first)
	done()
	if err := <-worked; err != nil {
		b.Fatal(err)
	}
	stop()
	if err := <-produced; err != nil {
		b.Fatal(err)
	}
	return took
}

// bareUpserts returns the time that the store needs to write benchEvents entities without a worker.
func bareUpserts(b *testing.B, pg *postgres.Store, round int) time.Duration {
	b.Helper()
	var writes []store.Write
	for i := range benchEvents {
		text := []byte(document(fmt.Sprint(round, i)))
		p := store.Encode(text)
		writes = append(writes, store.Write{
			Entity: schemas.Entity{Source: "bare", Facet: "f", Key: fmt.Sprint(round, "-", i)}, Version: 1, CheckedAt: time.Now(),
			Hash: sha256.Sum256(text), Payload: func() (store.Payload, error) { return p, nil },
		})
	}
	start := time.Now()
	for i := 0; i < len(writes); i += 100 {
		if _, err := pg.Write(b.Context(), writes[i:i+100]); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}
