package consumer

import (
	"context"
	"slices"
	"sync"

	"github.com/freshet/freshet/poll"
)

// firstAttemptEvery = 4 means: every fourth probe is the first call of a record from breakerQueue,
// even if there are known-good entities. All known-good entities may still fail after the source
// has recovered.
const firstAttemptEvery = 4

// breakerQueue holds records that gave their slot up before they sent a call, because the source's
// breaker is open. Each record waits until the breaker closes or the record is chosen as the probe.
// The oldest record is chosen first.
type breakerQueue struct {
	mu    sync.Mutex
	list  []*breakerWaiter
	added chan struct{} // holds one signal after a record was added to the queue
}

type breakerWaiter struct{ chosen, done chan struct{} }

func newBreakerQueue() *breakerQueue {
	return &breakerQueue{added: make(chan struct{}, 1)}
}

func (l *breakerQueue) add() *breakerWaiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiter := &breakerWaiter{chosen: make(chan struct{}), done: make(chan struct{})}
	l.list = append(l.list, waiter)
	select {
	case l.added <- struct{}{}:
	default:
	}
	return waiter
}

func (l *breakerQueue) remove(waiter *breakerWaiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(w *breakerWaiter) bool { return w == waiter })
}

func (l *breakerQueue) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// choose removes and returns the oldest waiter, or nil.
func (l *breakerQueue) choose() *breakerWaiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return nil
	}
	waiter := l.list[0]
	l.list = l.list[1:]
	close(waiter.chosen)
	return waiter
}

// awaitBreaker gives the task's slot up until the source's breaker closes or the task is chosen as
// the probe. If the task is the probe, awaitBreaker returns its waiter, and the caller must close
// waiter.done after one attempt. It reports false if ctx or the assignment ended.
func (w *Worker) awaitBreaker(ctx context.Context, t *task) (probe *breakerWaiter, ok bool) {
	ctx, unbind := t.ledger.bind(ctx, func() bool { return false })
	defer unbind()
	w.releaseSlot(t)
	waiter := w.breakerQueue.add()
	select {
	case <-w.permits.BreakerClosed():
	case <-waiter.chosen:
	case <-ctx.Done():
	}
	w.breakerQueue.remove(waiter)
	w.reacquireSlot(t)
	if ctx.Err() != nil {
		close(waiter.done) // if this task was chosen as the probe, probeLoop now chooses another record
		return nil, false
	}
	select {
	case <-waiter.chosen:
		return waiter, true
	default:
		close(waiter.done)
		return nil, true
	}
}

// probeLoop sends probes while the source's breaker is open: fetches of known-good entities, and
// the oldest records of breakerQueue.
func (w *Worker) probeLoop(ctx, hard context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-w.permits.UntilBreakerOpens().Done():
			w.probe(ctx, hard, n)
		case <-ctx.Done():
		}
	}
}

func (w *Worker) probe(ctx, hard context.Context, n int) {
	if n%firstAttemptEvery != firstAttemptEvery-1 || w.breakerQueue.len() == 0 {
		if k := w.health.nextProbe(); k != nil {
			if _, called := w.fetchKnownGood(ctx, hard, k, "", true); !called {
				poll.Pause(ctx, initialRetryDelay)
			}
			return
		}
	}
	if waiter := w.breakerQueue.choose(); waiter != nil {
		select {
		case <-waiter.done:
		case <-ctx.Done():
		}
		return
	}
	select {
	case <-w.breakerQueue.added:
	case <-w.permits.BreakerClosed():
	case <-ctx.Done():
	}
}
