package consumer

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// attemptTimeout bounds one attempt at the database, Redis or Kafka, each of
	// which may hang instead of failing.
	attemptTimeout = 15 * time.Second
	// backoffFirst doubles with each failed attempt up to backoffMost.
	backoffFirst = 50 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// persist does something until it succeeds: a database, Redis or Kafka that is
// away holds its records and loses none. It returns an error only when ctx ends.
// The first failure and the recovery are logged, not each attempt.
func (w *Worker) persist(ctx context.Context, what string, do func(context.Context) error) error {
	backoff := backoffFirst
	for n := 0; ; n++ {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		switch {
		case err == nil:
			if n > 0 {
				w.log.Info("goes on again", "doing", what, "failures", n)
			}
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n == 0:
			w.log.Warn("held until it succeeds", "doing", what, "err", err)
		}
		w.metrics.held.WithLabelValues(what).Inc()
		if !pause(ctx, jittered(backoff)) {
			return context.Cause(ctx)
		}
		backoff = min(2*backoff, backoffMost)
	}
}

// jittered spreads a wait, so that those who failed together do not come back
// together.
func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d) //nolint:gosec // not a secret
}

// pause waits; it reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
