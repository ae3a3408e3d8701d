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
	// attemptTimeout bounds one attempt at the database, Redis or Kafka, each of
	// which may hang instead of failing. Kafka's client gives up a record by its
	// own, shorter limits.
	attemptTimeout = 15 * time.Second
	// backoffFirst doubles with each failed attempt up to backoffMost.
	backoffFirst = 50 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// What is done until it succeeds, as logs and metrics name it.
const (
	doingReach   = "reach the database"
	doingStates  = "look up snapshots"
	doingStatus  = "look up failures"
	doingParams  = "look up registered parameters"
	doingPeek    = "peek at requests"
	doingWrite   = "write snapshots"
	doingFail    = "write down failures"
	doingLetters = "write dead letters"
	doingSettle  = "settle requests"
)

// persist does something until it succeeds: a database, Redis or Kafka that is
// away holds its records and loses none. It returns an error only when ctx ends.
func (w *Worker) persist(ctx context.Context, what string, do func(context.Context) error) error {
	backoff := backoffFirst
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := do(attempt)
		cancel()
		if err == nil {
			w.trouble.Over(w.log, what)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, store.ErrContention) {
			backoff = backoffFirst // two transactions met; the database is well
		} else if !errors.Is(err, gobreaker.ErrOpenState) && !errors.Is(err, gobreaker.ErrTooManyRequests) {
			w.trouble.Say(w.log, what, err)
		}
		w.metrics.held.WithLabelValues(what).Inc()
		if !pause(ctx, jittered(backoff)) {
			return context.Cause(ctx)
		}
		backoff = min(2*backoff, backoffMost)
	}
}

// troubles are what can't be done at the moment. The first failure and the
// recovery of each are logged, not what lies between, however many records wait.
type troubles struct {
	mu  sync.Mutex
	now map[string]*trouble
	n   atomic.Int32 // of them
}

// trouble is one of them.
type trouble struct {
	failures int
	last     time.Time
}

// troubleQuiet is for how long something has to succeed before it is said to be
// over: what fails and succeeds in turn is one trouble.
const troubleQuiet = time.Second

// any reports whether there is one.
func (t *troubles) any() bool { return t.n.Load() > 0 }

// Say notes a failure that passes by itself.
func (t *troubles) Say(log *slog.Logger, doing string, err error) {
	t.say(log, slog.LevelWarn, doing, err)
}

// Shout notes a failure that somebody should look at.
func (t *troubles) Shout(log *slog.Logger, doing string, err error) {
	t.say(log, slog.LevelError, doing, err)
}

func (t *troubles) say(log *slog.Logger, level slog.Level, doing string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		t.now = map[string]*trouble{}
	}
	one := t.now[doing]
	if one == nil {
		one = &trouble{}
		t.now[doing] = one
		t.n.Add(1)
	}
	one.failures++
	one.last = time.Now()
	if one.failures == 1 {
		log.Log(context.Background(), level, "records are held until this succeeds", "doing", doing, "err", err)
	}
}

// Over notes a success.
func (t *troubles) Over(log *slog.Logger, doing string) {
	if !t.any() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.now[doing]; one != nil && time.Since(one.last) >= troubleQuiet {
		log.Info("this succeeds again", "doing", doing, "failures", one.failures)
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
