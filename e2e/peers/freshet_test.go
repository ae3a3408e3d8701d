package peers

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/postgres"
)

// freePermits grants every permit at once, because the queues have no limiter. The embedded
// interfaces are nil: their methods are for failures, which the upstream does not have.
type freePermits struct{ consumer.Permits }

func (freePermits) Acquire(context.Context, schemas.Lane, source.Call) (consumer.Permit, error) {
	return freePermit{}, nil
}
func (freePermits) CloseBreaker(time.Time)             {}
func (freePermits) BreakerOpenSince(time.Time) bool    { return false }
func (freePermits) UntilBreakerOpens() context.Context { return context.Background() }
func (freePermits) HighPerSecond() float64             { return math.Inf(1) }
func (freePermits) LowReserve() float64                { return 0 }

type freePermit struct{ consumer.Permit }

func (freePermit) Spend() bool                 { return true }
func (freePermit) Written()                    {}
func (freePermit) Answered()                   {}
func (freePermit) Credential() string          { return "" }
func (freePermit) IsProbe() bool               { return false }
func (freePermit) IsSourceProbe() bool         { return false }
func (freePermit) ReportEnd(source.CallResult) {}
func (freePermit) ReportSuccess()              {}
func (freePermit) Release()                    {}

// countedStore counts written results.
type countedStore struct {
	*postgres.Store
	done *counter
}

func (c countedStore) Write(ctx context.Context, writes []store.Write) ([]store.Result, error) {
	results, err := c.Store.Write(ctx, writes)
	c.done.add(len(results))
	return results, err
}

// unknownLag is a consumer.Lag without a measurement.
type unknownLag struct{}

func (unknownLag) Records(string, schemas.Lane) (int64, bool) { return 0, false }

// freshet enqueues the events in Kafka, starts a LOW worker, and returns the time from its first
// stored result to its last.
func (s *services) freshet(b *testing.B, _ string) time.Duration {
	name := servicetest.Name("peers")
	brokers := kgo.SeedBrokers(servicetest.Kafka(b)...)
	s.enqueue(b, name, brokers)
	config := source.DefaultConfig()
	config.BaseURL = s.upstream
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	config.Facets = map[string]source.Facet{"f": f}
	low := consumer.DefaultConfig(schemas.Low)
	src, err := source.New(name, config, nil, low.MaxInFlight)
	check(b, err)
	defer src.Close()
	done := newCounter()
	w, err := consumer.New(low, src, schemas.Low, consumer.Deps{
		Store: countedStore{s.store, done}, Requests: producer.NewCoalescer(s.rdb), Permits: freePermits{}, Lag: unknownLag{}, Health: consumer.NewHealth(),
		Kafka: func(string) []kgo.Opt { return []kgo.Opt{brokers, kgo.DisableClientMetrics()} },
		Log:   slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	check(b, err)
	ctx, stop := context.WithCancel(b.Context())
	worked, failed := make(chan error, 1), make(chan error)
	go func() { worked <- w.Run(ctx) }()
	took := done.wait(b, failed)
	stopped(b, stop, worked)
	return took
}

// enqueue publishes the events with the producer, so that Redis has the state of each event's
// entity.
func (s *services) enqueue(b *testing.B, name string, brokers kgo.Opt) {
	b.Helper()
	client, err := kgo.NewClient(append(producer.ClientOptions(*events), brokers, kgo.DisableClientMetrics())...)
	check(b, err)
	defer client.Close()
	topic := schemas.RequestTopic(name, schemas.Low)
	_, err = kadm.NewClient(client).CreateTopic(b.Context(), 24, 1, nil, topic)
	check(b, err)
	prod := producer.New(s.rdb, client, *events, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), observe.Tracer{})
	ctx, stop := context.WithCancel(b.Context())
	produced := make(chan error, 1)
	go func() { produced <- prod.Run(ctx) }()
	requests := make([]producer.Request, *events)
	for i := range requests {
		requests[i] = producer.Request{Entity: schemas.Entity{Source: name, Facet: "f", Key: fmt.Sprint(name, "-", i)}, Lane: schemas.Low, Reason: schemas.Prefetch}
	}
	for _, r := range prod.EnqueueAll(ctx, requests) {
		if !r.Queued() {
			b.Fatalf("enqueue: got %+v, want queued", r)
		}
	}
	check(b, client.Flush(ctx))
	stopped(b, stop, produced)
}
