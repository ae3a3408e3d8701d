package query

import (
	"errors"
	"log/slog"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/store"
)

const (
	slowRead    = time.Second     // a read that takes longer counts as a failure
	openTimeout = 2 * time.Second // time for which the open breaker rejects reads
)

// breaker is the circuit breaker for reads of the database. While it is open, reads are served
// from the cache; a read of an entity that is not cached fails at once.
type breaker struct {
	circuit *gobreaker.TwoStepCircuitBreaker[any]
}

var errSlowRead = errors.New("read took too long")

func newBreaker(setState func(float64), log *slog.Logger) *breaker {
	return &breaker{gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Name: "store", MaxRequests: 3, Timeout: openTimeout, Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= 5 || (c.Requests >= 10 && 2*c.TotalFailures >= c.Requests)
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			setState(float64(to))
			switch {
			case to == gobreaker.StateClosed:
				log.Info("database reads restored; circuit breaker closed")
			case from == gobreaker.StateClosed:
				log.Warn("database reads failing; circuit breaker open, serving cached snapshots")
			}
		},
	})}
}

// withBreaker calls `read`, unless the breaker is open. store.ErrNotFound counts as success.
func withBreaker[T any](b *breaker, read func() (T, error)) (result T, err error) {
	done, err := b.circuit.Allow()
	if err != nil {
		return result, err
	}
	began := time.Now()
	outcome := errSlowRead // errSlowRead stays in outcome if the read panics or is slow. Then the breaker counts a failure.
	defer func() { done(outcome) }()
	result, err = read()
	switch {
	case err != nil && !errors.Is(err, store.ErrNotFound):
		outcome = err
	case time.Since(began) < slowRead:
		outcome = nil
	}
	return result, err
}
