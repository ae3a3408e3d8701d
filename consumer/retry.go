package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

const (
	// dependencyTimeout is the time limit of one call to PostgreSQL, Redis or Kafka, because each
	// of them may hang instead of failing. The Kafka client has shorter limits of its own for a
	// record that it produces.
	dependencyTimeout = 15 * time.Second
	// minBackoff is the delay after the first failed call; it doubles with each further failed
	// call, up to maxBackoff.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// The names, in logs and metrics, of the operations that are retried until they succeed.
const (
	opReachDB      = "reach the database"
	opStates       = "look up snapshots"
	opStatus       = "look up failures"
	opParams       = "look up registered parameters"
	opAliases      = "look up aliases"
	opPeek         = "peek at requests"
	opBegin        = "begin fetches"
	opWrite        = "write snapshots"
	opFail         = "write failures"
	opDeadLetters  = "write dead letters"
	opSettle       = "settle requests"
	opRequestAlias = "request aliases"
	opWalk         = "read collections"
	opDerive       = "read items"
	opRuns         = "read steps of runs"
	opPoll         = "read from Kafka"
)

// failedOperation returns the log condition of an operation that fails and is retried.
func failedOperation(op string) observe.Condition {
	return observe.Condition{
		Event: "worker_operation_failed", Failing: "worker operation failed; retrying, the affected records stay uncommitted", Recovered: "worker operation works again",
		Attr: "operation", Value: op,
	}
}

// retry calls `do` until it succeeds. While PostgreSQL, Redis or Kafka is down, the caller's records
// stay uncommitted and none is lost. It returns an error only when ctx ends.
func (b *base) retry(ctx context.Context, op string, do func(context.Context) error) error {
	backoff := minBackoff
	for {
		attempt, cancel := context.WithTimeout(ctx, dependencyTimeout)
		err := do(attempt)
		cancel()
		if err == nil {
			b.conditions.Resolved(b.log, failedOperation(op))
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, store.ErrContention) {
			backoff = minBackoff // two transactions were in conflict; the database is healthy, so the delay stays short
		} else if !errors.Is(err, gobreaker.ErrOpenState) && !errors.Is(err, gobreaker.ErrTooManyRequests) {
			b.conditions.Warn(b.log, failedOperation(op), err)
		}
		b.metrics.dependencyFailures.WithLabelValues(op).Inc()
		if !poll.Pause(ctx, jittered(backoff)) {
			return context.Cause(ctx)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// jittered returns a random duration from d/2 to 3d/2. So callers that have failed at the same time do
// not retry at the same time.
func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d) //nolint:gosec // the random number is not a secret
}
