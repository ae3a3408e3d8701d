package consumer_test

import (
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

var long = flag.Bool("long", false, "run the tests that take minutes")

// fillItems stores n items of about 300 bytes in ten collections, which belong to the key acme.
func fillItems(t *testing.T, url, source string, n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	i := 0
	_, err = conn.CopyFrom(t.Context(), pgx.Identifier{"items"}, []string{"source", "facet", "key", "item", "hash", "version", "changed_at", "deleted", "encoding", "size", "payload"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i == n {
				return nil, nil
			}
			i++
			content := fmt.Appendf(nil, `{"created_at":%q,"number":%d,"state":"open","title":"the title of an issue with the number %d","body":"%0150d","user":{"login":"user%d"}}`,
				time.Unix(int64(1_500_000_000+i*300), 0).UTC().Format(time.RFC3339), i, i, i, i%2_000)
			p := store.Encode(content)
			return []any{source, "issues", fmt.Sprintf("acme/r%d", i%10), fmt.Sprint(i), make([]byte, 32), int64(i), int64(i), false, p.Encoding, p.Size, p.Bytes}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	for k := range 10 {
		_, err := conn.Exec(t.Context(), `INSERT INTO collections (source, facet, key, version, extract_version, visibility, items, changed, changed_at, cursor_value, etag, complete_at,
			full_at, full_walk, walk, walk_at, walk_date, page, position, checkpoint, walk_full, greatest, walk_etag, walk_extract_version)
			VALUES ($1, 'issues', $2, 1, 1, '', $3, 1, 1, '', '', 1, 1, 0, 0, 0, 0, 0, '', '', false, '', '', 0)`, source, fmt.Sprintf("acme/r%d", k), n/10)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), "ANALYZE"); err != nil {
		t.Fatal(err)
	}
}

// TestDerived_AMillionItems requests statistics that are computed from a million items. The time from
// the request to the stored snapshot must be at most 20 s, with at most 50 MB of additional memory.
func TestDerived_AMillionItems(t *testing.T) {
	if !*long {
		t.Skip("a million items take a minute to write: make e2e-long")
	}
	const n, name = 1_000_000, "million"
	url := servicetest.Postgres(t)
	if _, err := postgres.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	pg, err := postgres.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Close)
	fillItems(t, url, name, n)

	config := source.DefaultConfig()
	config.BaseURL = "http://127.0.0.1:9"
	issues, stats := source.DefaultFacet(), source.DefaultFacet()
	issues.KeyPattern = "(?P<owner>[a-z]+)/[a-z0-9]+"
	issues.Documents = map[string]source.Document{"issues": {Path: "/{owner}"}}
	issues.Collection = &items.Collection{ID: "number"}
	stats.Derived = &derived.Config{
		Over: map[string]derived.Input{"issues": {Key: "{owner}", At: "created_at"}}, By: []derived.Period{derived.Year, derived.Month}, TimeZone: "Asia/Seoul",
		Measures: map[string]derived.Measure{"opened": {Count: true}, "people": {Distinct: "user.login"}, "greatest": {Max: "number"}, "sum": {Sum: "number"}},
	}
	config.Facets = map[string]source.Facet{"issues": issues, "stats": stats}
	src, err := source.New(name, config, nil, 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.DefaultNumPartitions(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	seeds := []kgo.Opt{kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.DisableClientMetrics()}
	client, err := kgo.NewClient(append(seeds, producer.ClientOptions(1000)...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	for _, topic := range schemas.Topics(name) {
		if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic.Name); err != nil {
			t.Fatal(err)
		}
	}
	rdb, _ := servicetest.MiniRedis(t)
	run := (&rig{T: t}).run
	prod := producer.New(rdb, client, 1000, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), observe.Tracer{})
	run(prod.Run)
	w, err := consumer.New(consumer.DefaultConfig(schemas.High), src, schemas.High, consumer.Deps{
		Store: pg, Requests: producer.NewCoalescer(rdb), Permits: freePermits{}, Retries: &countingRetries{}, Outbox: &countingOutbox{}, Lag: &fixedLag{},
		Health: consumer.NewHealth(), Walks: collection.New(pg), Items: collection.New(pg), Kafka: func(string) []kgo.Opt { return seeds },
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	run(w.Run)

	e := schemas.Entity{Source: name, Facet: "stats", Key: "acme"}
	for round := range 2 { // the first round begins with empty caches
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		var peak atomic.Uint64
		done := make(chan struct{})
		go func() {
			for {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak.Store(max(peak.Load(), now.HeapInuse))
				select {
				case <-done:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
		started := time.Now()
		if got := prod.Enqueue(t.Context(), producer.Request{Entity: e, Lane: schemas.High, Reason: schemas.UserRequest}); !got.Queued() {
			t.Fatalf("request: got %+v, want it queued", got)
		}
		servicetest.WaitFor(t, waitTimeout, "the statistics", func() bool {
			all, err := pg.States(t.Context(), []schemas.Entity{e})
			return err == nil && all[0].CheckedAt.After(started)
		})
		took, more := time.Since(started), int64(peak.Load())-int64(before.HeapInuse)
		close(done)
		t.Logf("round %d: %d items in %.1f s, %.1f MB more heap", round, n, took.Seconds(), float64(more)/1e6)
		if took > 20*time.Second || more > 50_000_000 {
			t.Errorf("round %d: got %v and %d bytes, want at most 20 s and 50 MB", round, took, more)
		}
	}
	s, err := pg.Get(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	content, err := s.Decode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"total":{"greatest":1000000,"opened":1000000,"people":2000,"sum":500000500000}`; !strings.Contains(string(content), want) {
		t.Errorf("content: got %.300s…, want it to contain %s", content, want)
	}
}
