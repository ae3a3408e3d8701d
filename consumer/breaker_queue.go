package consumer

import (
	"slices"
	"sync"
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
