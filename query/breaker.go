package query

import (
	"errors"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/store"
)

const (
	slowRead    = time.Second     // a look that took longer counts as failed
	openTimeout = 2 * time.Second // how long nobody looks once the breaker is open
)

// breaker keeps readers from waiting for a database that fails or hangs: what is
// remembered is served meanwhile, and everything else is refused at once.
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[any]
}

var errSlowRead = errors.New("the look took too long")

func newBreaker(show func(float64), log *slog.Logger) *breaker {
	return &breaker{gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name: "store", MaxRequests: 3, Timeout: openTimeout, Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || (c.Requests >= 10 && 2*c.TotalFailures >= c.Requests)
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			show(float64(to))
			switch {
			case to == gobreaker.StateClosed:
				log.Info("reads go on from the database")
			case from == gobreaker.StateClosed:
				log.Warn("reads go on from memory: the database fails or hangs, and is tried again every other second")
			}
		},
	})}
}

// withBreaker looks, unless the breaker is open.
func withBreaker[T any](b *breaker, look func() (T, error)) (found T, err error) {
	done, err := b.circuit.Allow()
	if err != nil {
		return found, err
	}
	began := time.Now()
	verdict := errSlowRead // also for a look that panics
	defer func() { done(verdict) }()
	found, err = look()
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		verdict = err
	case time.Since(began) < slowRead:
		verdict = nil
	}
	return found, err
}
