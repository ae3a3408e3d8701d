package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/lua/eval"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
)

const (
	// sharedTimeout is the timeout of the Redis call for one request.
	sharedTimeout = 500 * time.Millisecond
	// sharedFailures is the number of successive failures after which the circuit breaker opens, and
	// sharedOpenTimeout is how long it stays open. So while Redis fails, one request waits for it in each
	// sharedOpenTimeout.
	sharedFailures    = 3
	sharedOpenTimeout = 500 * time.Millisecond
)

// limitsNotShared is the condition while Redis does not answer.
var limitsNotShared = observe.Condition{
	Event: "limits_not_shared", Failing: "redis did not answer; the request limits of clients apply in each process separately", Recovered: "redis answers again; the request limits of clients apply to all processes together",
}

// sharedRate is the limit of requests that all processes share: a token bucket for each client in
// Redis. Its methods may be called concurrently.
type sharedRate struct {
	rdb        redis.UniversalClient
	timeout    time.Duration // timeout of a call to Redis: sharedTimeout, or longer in tests
	breaker    *gobreaker.CircuitBreaker[time.Duration]
	log        *slog.Logger
	conditions observe.Conditions
}

// Share makes the limit of requests apply to all processes together that call Share with the same
// Redis. While Redis does not answer, the limit applies to each process. It must be called before the
// first request.
func (m *ClientLimiter) Share(rdb redis.UniversalClient, log *slog.Logger) {
	m.shared = &sharedRate{rdb: rdb, timeout: sharedTimeout, log: log, breaker: gobreaker.NewCircuitBreaker[time.Duration](gobreaker.Settings{
		Name: "shared limits", MaxRequests: 1, Timeout: sharedOpenTimeout,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= sharedFailures },
	})}
}

// take takes n tokens from the bucket of a client and returns 0. If there are fewer than n tokens, it
// takes none and returns the time until there are enough. After an error it is unknown whether the tokens
// were taken.
func (s *sharedRate) take(r CallRate, client string, n int) (wait time.Duration, err error) {
	wait, err = s.breaker.Execute(func() (time.Duration, error) {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		defer cancel()
		us, err := eval.Once(ctx, s.rdb, lua.ClientTake, eval.Call{
			Key: "requests:" + schemas.ClientID(limitKey(client)), Args: []any{r.calls, r.window.Microseconds(), n},
		}).Int64()
		return time.Duration(us) * time.Microsecond, err
	})
	switch {
	case errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests):
		return 0, err // the condition is logged already
	case err != nil:
		err = fmt.Errorf("take tokens of a client from redis: %w", err)
	}
	s.conditions.Record(s.log, limitsNotShared, err)
	return wait, err
}
