package limiter

import (
	"context"
	"sync/atomic"
	"time"
)

// OpenBreaker opens the source's circuit breaker for all processes, because a call sent at the
// time `sent` showed that the upstream is unhealthy. From then on only single probes are sent:
// the first one after the pause `first`, each further one after a pause that is twice as long, up
// to `maxPause`. Each pause is at least one second. A probe needs room in all policies, like any
// call. CloseBreaker closes the breaker.
//
// While the breaker is open, further calls of OpenBreaker can only lengthen the pauses, so failed
// probes need not be reported. A call that was sent before the breaker last closed cannot open it
// again. If the breaker was closed, OpenBreaker releases the slots that this process has reserved.
func (l *Limiter) OpenBreaker(first, maxPause time.Duration, sent time.Time) {
	l.mu.Lock()
	l.alloc.pending.add(openEvent(first, maxPause, max(0, l.alloc.clock.at(sent))))
	if !l.alloc.breaker.open.Load() { // while the breaker is open, a reserved slot is kept, because it is the next probe
		l.alloc.pending.pause = true
		l.alloc.releaseSlots()
	}
	l.mu.Unlock()
	l.wake()
}

// CloseBreaker reports the success of a call that was sent at the time `sent`. If the source's
// circuit breaker had opened before that time, it closes, and the rate rises from half to full
// within ten seconds. A backoff or an emergency stop stays in force. Call CloseBreaker for every
// success: it does nothing unless this process knows of an open breaker.
func (l *Limiter) CloseBreaker(sent time.Time) {
	if !l.alloc.breaker.open.Load() {
		return
	}
	l.mu.Lock()
	l.alloc.pending.add(closeEvent(max(0, l.alloc.clock.at(sent))))
	l.mu.Unlock()
	l.wake()
}

// BreakerOpenSince reports whether, as far as this process knows, the breaker was open at any
// moment from `since` until now. If it was, the failure of a call sent at `since` says nothing
// about the entity that was fetched.
func (l *Limiter) BreakerOpenSince(since time.Time) bool {
	return l.alloc.breaker.openSince(since)
}

// UntilBreakerOpens returns a context that ends when this process learns that the breaker has
// opened. While the breaker is open, the returned context has already ended.
func (l *Limiter) UntilBreakerOpens() context.Context { return l.alloc.breaker.period.Load().healthy }

// BreakerClosed returns a channel that is closed when this process learns that the breaker has
// closed. A process learns this only while some of its callers wait for permits.
func (l *Limiter) BreakerClosed() <-chan struct{} { return l.alloc.breaker.period.Load().closed }

// sourceBreaker is the state of the source's circuit breaker, as this process knows it. Its methods
// are safe for concurrent use, but only one goroutine at a time can call the method `set`.
type sourceBreaker struct {
	open      atomic.Bool
	openUntil atomic.Pointer[time.Time] // when the breaker was last known to be open
	period    atomic.Pointer[breakerPeriod]
}

// openSince reports whether the breaker was known to be open at any moment from `since` until now.
func (b *sourceBreaker) openSince(since time.Time) bool {
	if b.open.Load() {
		return true
	}
	until := b.openUntil.Load()
	return until != nil && !until.Before(since)
}

// set begins a period in which the breaker is open or closed.
func (b *sourceBreaker) set(open bool) {
	if !open {
		now := time.Now()
		b.openUntil.Store(&now)
	}
	b.open.Store(open)
	former := b.period.Swap(newBreakerPeriod(open))
	if open {
		former.open()
	} else {
		close(former.closed)
	}
}

// breakerPeriod is one period in which the circuit breaker is open or closed. A change of the circuit
// breaker ends the period and starts another.
type breakerPeriod struct {
	healthy context.Context // this context ends when the circuit breaker opens; while the breaker is open, it has already ended
	open    context.CancelFunc
	closed  chan struct{} // this channel is open while the circuit breaker is open, and closed while the breaker is closed
}

func newBreakerPeriod(open bool) *breakerPeriod {
	b := &breakerPeriod{closed: make(chan struct{})}
	b.healthy, b.open = context.WithCancel(context.Background())
	if open {
		b.open()
	} else {
		close(b.closed)
	}
	return b
}
