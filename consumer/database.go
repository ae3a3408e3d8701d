package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// slowThreshold is how long the database may take for one batch before that counts
	// as a failure: it is then no more use to fetch for it than if it were dead. One
	// that hangs counts again for each slowAfter that it lasts.
	slowThreshold = 2 * time.Second
	// dbBreakerTimeout is how long the breaker stays open before one call tries.
	dbBreakerTimeout = 2 * time.Second
)

var (
	errSlow        = errors.New("the database is slow")
	errSlowCounted = errors.New("the database was slow, as the breaker knows")
)

// newDBBreaker returns the database's breaker: it opens when half of the last ten
// seconds' calls failed or were slow, of at least ten, or five in a row. While it
// is not closed nothing is fetched, since nothing could be written.
func newDBBreaker(w *Worker) *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
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
			w.gates.set(gateDatabase, to == gobreaker.StateClosed)
			w.metrics.database.Set(float64(to))
			select {
			case w.dbBreakerChanged <- struct{}{}:
			default:
			}
		},
	})
}

// retryDB is persist for the database, by way of its breaker.
func (w *Worker) retryDB(ctx context.Context, what string, do func(context.Context) error) error {
	return w.retry(ctx, what, func(ctx context.Context) error {
		_, err := w.dbBreaker.Execute(func() (struct{}, error) {
			started, counting := time.Now(), w.countSlow()
			err := do(ctx)
			counted := counting()
			if err == nil && counted {
				err = errSlowCounted
			} else if err == nil && time.Since(started) > slowThreshold {
				err = errSlow
			}
			return struct{}{}, err
		})
		if errors.Is(err, errSlow) || errors.Is(err, errSlowCounted) { // to the breaker alone: the work is done
			return nil
		}
		return err
	})
}

// countSlow counts a failure for each slowAfter that a call lasts, until it is ended:
// of calls that hang there are only a few at a time, and their ends come too late. It
// returns whether the breaker took any.
func (w *Worker) countSlow() (end func() (counted bool)) {
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
		_, err := w.dbBreaker.Execute(func() (struct{}, error) { return struct{}{}, errSlow })
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

// probeDatabase has an open breaker try again also where nobody else does: those
// who would may all wait for it to close.
func (w *Worker) probeDatabase(ctx context.Context) {
	nobody := []schemas.Entity{{Source: w.source.Name(), Facet: "-", Key: "-"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.dbBreakerChanged:
		}
		for w.dbBreaker.State() != gobreaker.StateClosed {
			if !sleep(ctx, dbBreakerTimeout) || w.retryDB(ctx, opReachDB, func(ctx context.Context) error {
				_, err := w.store.States(ctx, nobody)
				return err
			}) != nil {
				return
			}
		}
	}
}
