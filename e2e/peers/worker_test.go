package peers

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

var events = flag.Int("events", 50_000, "events in each measurement of BenchmarkWorker")

// items is the part of the documents that does not depend on the key.
var items = strings.Repeat(fmt.Sprintf(`{"id":"abcdefgh1234567890","value":"%x"},`, sha256.Sum256([]byte("value"))), 160)

// document returns 17 KB of content, different for each key.
func document(key string) string { return `{"items":[` + items + `1],"name":"` + key + `"}` }

// services holds the real services, and an upstream that answers at once.
type services struct {
	rdb      *redis.Client
	url      string // URL of the database
	pool     *pgxpool.Pool
	store    *postgres.Store
	upstream string
}

func newServices(b *testing.B) *services {
	b.Helper()
	s := &services{rdb: redis.NewClient(&redis.Options{Addr: servicetest.RedisAddress(b), MaxRetries: -1}), url: servicetest.Postgres(b)}
	b.Cleanup(func() { _ = s.rdb.Close() })
	_, err := postgres.Migrate(b.Context(), s.url)
	check(b, err)
	s.store, err = postgres.Open(b.Context(), s.url)
	check(b, err)
	b.Cleanup(s.store.Close)
	s.pool, err = pgxpool.New(b.Context(), s.url)
	check(b, err)
	b.Cleanup(s.pool.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, document(strings.TrimPrefix(r.URL.Path, "/")))
	}))
	b.Cleanup(server.Close)
	s.upstream = server.URL
	return s
}

// clear deletes the rows that a round has stored. So tables and indexes have the same size at the start
// of each round.
func (s *services) clear(b *testing.B) {
	b.Helper()
	_, err := s.pool.Exec(b.Context(), "TRUNCATE snapshot_state, snapshot_payload, peer_document, river_job")
	check(b, err)
	_, err = s.pool.Exec(b.Context(), "CHECKPOINT")
	check(b, err)
	check(b, s.rdb.FlushDB(b.Context()).Err())
}

// BenchmarkWorker measures events per second of the worker, of the same job on asynq and on river,
// and of upserts without a queue and without fetches. The systems are measured in turn in each round,
// so that other load on the machine affects all of them.
func BenchmarkWorker(b *testing.B) {
	s := newServices(b)
	s.prepareQueues(b)
	systems := []struct {
		name string
		run  func(b *testing.B, round string) time.Duration
		took time.Duration
	}{{name: "freshet", run: s.freshet}, {name: "bare", run: s.bareUpserts}, {name: "asynq", run: s.asynq}, {name: "river", run: s.river}}
	for round := 0; b.Loop(); round++ {
		for i := range systems {
			s.clear(b)
			took := systems[i].run(b, fmt.Sprint("r", round))
			systems[i].took += took
			b.Logf("round %d: %s %.0f events/s", round, systems[i].name, float64(*events)/took.Seconds())
		}
	}
	for _, x := range systems {
		b.ReportMetric(float64(*events*b.N)/x.took.Seconds(), x.name+"/s")
		if x.name != "freshet" {
			b.ReportMetric(x.took.Seconds()/systems[0].took.Seconds(), "×"+x.name)
		}
	}
	b.ReportMetric(0, "ns/op")
}

// counter measures the time from the end of the first event to the end of the last event of a round.
type counter struct {
	n    atomic.Int64
	want int64
	// first is when the first event ended. The channel ended is closed when the last event has ended.
	first time.Time
	last  time.Time
	ended chan struct{}
}

func newCounter() *counter { return &counter{want: int64(*events), ended: make(chan struct{})} }

func (c *counter) add(n int) {
	now, total := time.Now(), c.n.Add(int64(n))
	if total == int64(n) {
		c.first = now
	}
	if total >= c.want && total-int64(n) < c.want {
		c.last = now
		close(c.ended)
	}
}

// wait waits until the last event has ended. It returns the time between the end of the first event and
// the end of the last one.
func (c *counter) wait(b *testing.B, failed <-chan error) time.Duration {
	b.Helper()
	select {
	case <-c.ended:
	case err := <-failed:
		b.Fatal(err)
	case <-time.After(10 * time.Minute):
		b.Fatalf("events after 10 minutes: got %d, want %d", c.n.Load(), c.want)
	}
	return c.last.Sub(c.first)
}

// bareUpserts returns the time that the store needs to write the events in batches of 100, without a
// queue, without fetches and with payloads that are encoded already.
func (s *services) bareUpserts(b *testing.B, round string) time.Duration {
	var took time.Duration
	for i := 0; i < *events; i += 100 {
		writes := make([]store.Write, 0, 100)
		for j := range min(100, *events-i) {
			key := fmt.Sprint(round, "-", i+j)
			text := []byte(document(key))
			p := store.Encode(text)
			writes = append(writes, store.Write{
				Entity: schemas.Entity{Source: "bare", Facet: "f", Key: key}, Version: 1, CheckedAt: time.Now(),
				Hash: sha256.Sum256(text), Payload: func() (store.Payload, error) { return p, nil },
			})
		}
		start := time.Now()
		_, err := s.store.Write(b.Context(), writes)
		check(b, err)
		took += time.Since(start)
	}
	return took
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// stopped stops the goroutine of a system under test, and fails the benchmark if the goroutine returns
// an error.
func stopped(b *testing.B, stop context.CancelFunc, ended <-chan error) {
	b.Helper()
	stop()
	check(b, <-ended)
}
