package consumer

import (
	"context"
	"slices"
	"sync"
)

// firstAttemptEvery is the number of probes of which one is for the oldest first attempt, while
// known-good entities can be asked: those may have gone wrong one and all.
const firstAttemptEvery = 4

// breakerQueue are the first attempts that wait, without a slot, for the source's breaker to
// close or to be chosen as its probe. The oldest comes first.
type breakerQueue struct {
	mu    sync.Mutex
	list  []*breakerWaiter
	added chan struct{} // has room for one
}

type breakerWaiter struct{ chosen, done chan struct{} }

func newBreakerQueue() *breakerQueue {
	return &breakerQueue{added: make(chan struct{}, 1)}
}

func (l *breakerQueue) add() *breakerWaiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := &breakerWaiter{chosen: make(chan struct{}), done: make(chan struct{})}
	l.list = append(l.list, one)
	select {
	case l.added <- struct{}{}:
	default:
	}
	return one
}

func (l *breakerQueue) remove(one *breakerWaiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(w *breakerWaiter) bool { return w == one })
}

func (l *breakerQueue) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.list)
}

// choose takes out the oldest; nil: nobody waits.
func (l *breakerQueue) choose() *breakerWaiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return nil
	}
	one := l.list[0]
	l.list = l.list[1:]
	close(one.chosen)
	return one
}

// awaitBreaker gives the task's slot back until the source's breaker closes, or the task is to
// probe it: then it returns its waiter, whose done the caller closes after one attempt.
// It reports false if the task is given up.
func (w *Worker) awaitBreaker(ctx context.Context, t *task) (probe *breakerWaiter, ok bool) {
	ctx, over := t.ledger.bind(ctx, func() bool { return false })
	defer over()
	w.releaseSlot(t)
	one := w.breakerQueue.add()
	select {
	case <-w.permits.BreakerClosed():
	case <-one.chosen:
	case <-ctx.Done():
	}
	w.breakerQueue.remove(one)
	w.reacquireSlot(t)
	if ctx.Err() != nil {
		close(one.done) // the probe loop chooses another task
		return nil, false
	}
	select {
	case <-one.chosen:
		return one, true
	default:
		close(one.done)
		return nil, true
	}
}

// probeLoop probes while the source's breaker is open: with known-good entities, and with
// the oldest first attempt.
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
			if _, asked := w.fetchKnownGood(ctx, hard, k, "", true); !asked {
				sleep(ctx, initialRetryDelay)
			}
			return
		}
	}
	if one := w.breakerQueue.choose(); one != nil {
		select {
		case <-one.done:
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
