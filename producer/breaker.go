package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

// openTimeout is how long the Redis circuit breaker stays open. While Redis fails, one request
// per openTimeout calls Redis, and all other requests are rejected at once. The Redis client has
// dial and read timeouts of 1 s each, so requests are accepted again at most 2 s after Redis
// recovers. The design (adr-013 §11) has 30 s; docs/departures.md explains the difference.
const openTimeout = 500 * time.Millisecond

// newBreaker returns the Redis circuit breaker. It opens when at least half of at least ten calls in
// the last ten seconds failed. adr-013 §11 states the ratio of one half. The ten seconds are our
// choice: the library gobreaker counts calls per time window. One successful call in the half-open
// state closes the breaker. `setState` receives each new state (0 closed, 1 half-open, 2 open).
func newBreaker(setState func(float64)) *gobreaker.CircuitBreaker[[]Result] {
	return gobreaker.NewCircuitBreaker[[]Result](gobreaker.Settings{
		Name: "redis", MaxRequests: 1, Timeout: openTimeout,
		Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.Requests >= 10 && 2*c.TotalFailures >= c.Requests
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { setState(float64(to)) },
	})
}

// acquireWithBreaker calls `acquire` and `admit` through the circuit breaker. While the breaker is
// open, every result is ErrRedis and Redis is not called.
func (p *Producer) acquireWithBreaker(ctx context.Context, requests []Request) []Result {
	var results []Result
	_, err := p.breaker.Execute(func() ([]Result, error) {
		results = p.acquire(ctx, requests)
		p.admit(ctx, requests, results)
		for _, r := range results {
			if r.Err != nil {
				return nil, r.Err
			}
		}
		return results, nil
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		results = make([]Result, len(requests))
		for i := range results {
			results[i].Err = fmt.Errorf("%w (%w)", ErrRedis, err)
		}
	}
	return results
}
