package consumer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/store"
)

const (
	// dependencyTimeout bounds one attempt at the database, Redis or Kafka, each of
	// which may hang instead of failing. Kafka's client gives up a record by its
	// own, shorter limits.
	dependencyTimeout = 15 * time.Second
	// minBackoff doubles with each failed attempt up to backoffMost.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// What is done until it succeeds, as logs and metrics name it.
const (
	opReachDB     = "reach the database"
	opStates      = "look up snapshots"
	opStatus      = "look up failures"
	opParams      = "look up registered parameters"
	opPeek        = "peek at requests"
	opWrite       = "write snapshots"
	opFail        = "write down failures"
	opDeadLetters = "write dead letters"
	opSettle      = "settle requests"
)

// retry does something until it succeeds: a database, Redis or Kafka that is
// away holds its records and loses none. It returns an error only when ctx ends.
func (w *Worker) retry(ctx context.Context, what string, do func(context.Context) error) error {
	backoff := minBackoff
	for {
		attempt, cancel := context.WithTimeout(ctx, dependencyTimeout)
		err := do(attempt)
		cancel()
		if err == nil {
			w.conditions.Resolved(w.log, what)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, store.ErrContention) {
			backoff = minBackoff // two transactions met; the database is well
		} else if !errors.Is(err, gobreaker.ErrOpenState) && !errors.Is(err, gobreaker.ErrTooManyRequests) {
			w.conditions.Warn(w.log, what, err)
		}
		w.metrics.dependencyFailures.WithLabelValues(what).Inc()
		if !sleep(ctx, jittered(backoff)) {
			return context.Cause(ctx)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// conditions are what can't be done at the moment. The first failure and the
// recovery of each are logged, not what lies between, however many records wait.
type conditions struct {
	mu  sync.Mutex
	now map[string]*condition
	n   atomic.Int32 // of them
}

// condition is one of them.
type condition struct {
	failures int
	last     time.Time
}

// conditionQuiet is for how long something has to succeed before it is said to be
// over: what fails and succeeds in turn is one trouble.
const conditionQuiet = time.Second

// active reports whether there is one.
func (t *conditions) active() bool { return t.n.Load() > 0 }

// Warn notes a failure that passes by itself.
func (t *conditions) Warn(log *slog.Logger, doing string, err error) {
	t.record(log, slog.LevelWarn, doing, err)
}

// Error notes a failure that somebody should look at.
func (t *conditions) Error(log *slog.Logger, doing string, err error) {
	t.record(log, slog.LevelError, doing, err)
}

func (t *conditions) record(log *slog.Logger, level slog.Level, doing string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		t.now = map[string]*condition{}
	}
	one := t.now[doing]
	if one == nil {
		one = &condition{}
		t.now[doing] = one
		t.n.Add(1)
	}
	one.failures++
	one.last = time.Now()
	if one.failures == 1 {
		log.Log(context.Background(), level, "records are held until this succeeds", "operation", doing, "err", err)
	}
}

// Resolved notes a success.
func (t *conditions) Resolved(log *slog.Logger, doing string) {
	if !t.active() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.now[doing]; one != nil && time.Since(one.last) >= conditionQuiet {
		log.Info("this succeeds again", "operation", doing, "failures", one.failures)
		delete(t.now, doing)
		t.n.Add(-1)
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

// sleep waits; it reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
