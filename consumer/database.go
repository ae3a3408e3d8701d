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
	// slowAfter is how long the database may take for one batch before that counts
	// as a failure: it is then no more use to fetch for it than if it were dead. One
	// that hangs counts again for each slowAfter that it lasts.
	slowAfter = 2 * time.Second
	// reopenAfter is how long the breaker stays open before one call tries.
	reopenAfter = 2 * time.Second
)

var (
	errSlow    = errors.New("the database is slow")
	errCounted = errors.New("the database was slow, as the breaker knows")
)

// newBreaker returns the database's breaker: it opens when half of the last ten
// seconds' calls failed or were slow, of at least ten, or five in a row. While it
// is not closed nothing is fetched, since nothing could be written.
func newBreaker(w *Worker) *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name: "database", MaxRequests: 1, Timeout: reopenAfter,
		Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || (c.Requests >= 10 && 2*c.TotalFailures >= c.Requests)
		},
		IsSuccessful: func(err error) bool {
			return err == nil || errors.Is(err, store.ErrRejected) || errors.Is(err, store.ErrContention) || errors.Is(err, context.Canceled)
		},
		IsExcluded: func(err error) bool { return errors.Is(err, errCounted) },
		OnStateChange: func(_ string, _, to gobreaker.State) {
			w.gates.set(gateDatabase, to == gobreaker.StateClosed)
			w.metrics.database.Set(float64(to))
			select {
			case w.opened <- struct{}{}:
			default:
			}
		},
	})
}

// persistDB is persist for the database, by way of its breaker.
func (w *Worker) persistDB(ctx context.Context, what string, do func(context.Context) error) error {
	return w.persist(ctx, what, func(ctx context.Context) error {
		_, err := w.breaker.Execute(func() (struct{}, error) {
			started, counting := time.Now(), w.countSlow()
			err := do(ctx)
			counted := counting()
			if err == nil && counted {
				err = errCounted
			} else if err == nil && time.Since(started) > slowAfter {
				err = errSlow
			}
			return struct{}{}, err
		})
		if errors.Is(err, errSlow) || errors.Is(err, errCounted) { // to the breaker alone: the work is done
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
	timer = time.AfterFunc(slowAfter, func() {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return
		}
		_, err := w.breaker.Execute(func() (struct{}, error) { return struct{}{}, errSlow })
		counted = counted || errors.Is(err, errSlow)
		timer.Reset(slowAfter)
	})
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		timer.Stop()
		return counted
	}
}

// watchDatabase has an open breaker try again also where nobody else does: those
// who would may all wait for it to close.
func (w *Worker) watchDatabase(ctx context.Context) {
	nobody := []schemas.Entity{{Source: w.source.Name(), Facet: "-", Key: "-"}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.opened:
		}
		for w.breaker.State() != gobreaker.StateClosed {
			if !pause(ctx, reopenAfter) || w.persistDB(ctx, doingReach, func(ctx context.Context) error {
				_, err := w.store.States(ctx, nobody)
				return err
			}) != nil {
				return
			}
		}
	}
}
