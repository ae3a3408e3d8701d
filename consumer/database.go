package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// slowThreshold is the duration after which a database call counts as a failure for the circuit
	// breaker. A database this slow can't store results as fast as they are fetched. A call that
	// hangs counts again after each further slowThreshold.
	slowThreshold = 2 * time.Second
	// dbBreakerTimeout is how long the breaker stays open before it lets one call through.
	dbBreakerTimeout = 2 * time.Second
)

var (
	errSlow        = errors.New("the database is slow")
	errSlowCounted = errors.New("the database was slow; the circuit breaker has counted this as a failure")
)

// database makes the worker's calls to the database. A circuit breaker protects it.
type database struct {
	Store
	base    *base
	gates   *gates
	breaker *gobreaker.CircuitBreaker[struct{}]
	changed chan struct{} // receives a signal after each change of the breaker's state
}

// newDatabase returns a database whose circuit breaker opens after five failed or slow calls in a row.
// It also opens if half of at least ten calls within ten seconds failed or were slow. While the breaker
// is not closed, the worker fetches nothing, because no result could be stored.
func newDatabase(b *base, s Store, g *gates) *database {
	d := &database{Store: s, base: b, gates: g, changed: make(chan struct{}, 1)}
	d.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: "database", MaxRequests: 1, Timeout: dbBreakerTimeout,
		Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || (c.Requests >= 10 && 2*c.TotalFailures >= c.Requests)
		},
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, store.ErrRejected) || errors.Is(err, store.ErrContention) || errors.Is(err, context.Canceled)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errSlowCounted) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			d.gates.set(gateDatabase, to == gobreaker.StateClosed)
			b.metrics.database.Set(float64(to))
			select {
			case d.changed <- struct{}{}:
			default:
			}
		},
	})
	return d
}

// retry repeats a database call until it succeeds, as base.retry does, but makes each call through the
// database's circuit breaker. A slow call that succeeds is not repeated, but the breaker counts it
// as a failure.
func (d *database) retry(ctx context.Context, op string, do func(context.Context) error) error {
	return d.base.retry(ctx, op, func(ctx context.Context) error {
		_, err := d.breaker.Execute(func() (struct{}, error) {
			started, counting := time.Now(), d.countSlow()
			err := do(ctx)
			counted := counting()
			if err == nil && counted {
				err = errSlowCounted
			} else if err == nil && time.Since(started) > slowThreshold {
				err = errSlow
			}
			return struct{}{}, err
		})
		if errors.Is(err, errSlow) || errors.Is(err, errSlowCounted) { // the call has succeeded, and only the breaker counts it as a failure
			return nil
		}
		return err
	})
}

// status returns the entity's stored status.
func (d *database) status(ctx context.Context, e schemas.Entity) (store.Status, error) {
	var all []store.Status
	err := d.retry(ctx, opStatus, func(ctx context.Context) (err error) {
		all, err = d.Statuses(ctx, []schemas.Entity{e})
		return err
	})
	if err != nil {
		return store.Status{}, err
	}
	return all[0], nil
}

// countSlow makes the breaker count one failure for each slowThreshold that a database call lasts,
// until the returned function `end` is called. Without these counts, calls that hang would not open
// the breaker, because they are few and end late. `end` reports whether the breaker counted any
// failure.
func (d *database) countSlow() (end func() (counted bool)) {
	var mu sync.Mutex
	var ended, counted bool
	mu.Lock()
	defer mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(slowThreshold, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		_, err := d.breaker.Execute(func() (struct{}, error) { return struct{}{}, errSlow })
		counted = counted || errors.Is(err, errSlow)
		timer.Reset(slowThreshold)
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
		return counted
	}
}

// probe calls the database while its breaker is open. Without these calls the breaker might
// never close, because all records may wait until it is closed.
func (d *database) probe(ctx context.Context) {
	nobody := []schemas.Entity{{Source: d.base.source.Name(), Facet: "-", Key: "-"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		}
		for d.breaker.State() != gobreaker.StateClosed {
			if !poll.Pause(ctx, dbBreakerTimeout) || d.retry(ctx, opReachDB, func(ctx context.Context) error {
				_, err := d.States(ctx, nobody)
				return err
			}) != nil {
				return
			}
		}
	}
}
