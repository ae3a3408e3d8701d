package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"
)

// openTimeout is how long Redis' circuit breaker stays open. While Redis fails, one request
// calls it each openTimeout; the other requests are rejected at once. With the client's
// dial and read timeouts of 1 s each, requests are accepted at most 2 s after Redis answers
// again. adr-013 §11 has 30 s, see docs/departures.md.
const openTimeout = 500 * time.Millisecond

// newBreaker returns Redis' circuit breaker. As in adr-013 §11 it opens when half of at
// least ten calls have failed, here of the calls of the last ten seconds, since the library
// counts by time. One answer in the state half-open closes it.
func newBreaker(show func(float64)) *gobreaker.CircuitBreaker[[]Result] {
	return gobreaker.NewCircuitBreaker[[]Result](gobreaker.Settings{
		Name: "redis", MaxRequests: 1, Timeout: openTimeout,
		Interval: 10 * time.Second, BucketPeriod: time.Second,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.Requests >= 10 && 2*c.TotalFailures >= c.Requests
		},
		OnStateChange: func(_ string, _, to gobreaker.State) { show(float64(to)) },
	})
}

// acquireWithBreaker is acquire by way of the breaker: while Redis is known to fail no
// reader waits for it.
func (p *Producer) acquireWithBreaker(ctx context.Context, wishes []Request) []Result {
	var results []Result
	_, err := p.breaker.Execute(func() ([]Result, error) {
		results = p.acquire(ctx, wishes)
		p.admit(ctx, wishes, results)
		for _, r := range results {
			if r.Err != nil {
				return nil, r.Err
			}
		}
		return results, nil
	})
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		results = make([]Result, len(wishes))
		for i := range results {
			results[i].Err = fmt.Errorf("%w (%w)", ErrRedis, err)
		}
	}
	return results
}
