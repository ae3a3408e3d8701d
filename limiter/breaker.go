package limiter

import (
	"context"
	"fmt"
	"time"
)

// OpenBreaker opens the source's circuit breaker for all processes, because a call sent at that
// time showed that the upstream is unhealthy. No calls are sent except single probes: the first
// after `first`, later ones after pauses that double up to `maxPause` (at least one second each). A
// probe needs room in all policies, like any call. CloseBreaker closes the breaker.
//
// While the breaker is open, further reports can only lengthen its pauses, so failed probes
// need not be reported. Calls sent before the breaker closed last cannot open it again. Slots
// reserved before are released.
func (l *Limiter) OpenBreaker(first, maxPause time.Duration, sent time.Time) {
	l.mu.Lock()
	l.events = append(l.events, fmt.Sprintf("open %d %d %d", first.Microseconds(), maxPause.Microseconds(), max(0, l.clock.at(sent))))
	if !l.breakerOpen.Load() { // otherwise the reserved slot is the next probe
		l.backoffPending = true
		l.releaseSlots()
	}
	l.mu.Unlock()
	l.wake()
}

// CloseBreaker closes the source's circuit breaker, because a call sent at that time, after it
// opened, succeeded. The rate then rises from half to full within ten seconds. A backoff or an
// emergency stop stays in force. Call it for every success: it does nothing unless this process
// knows of an open breaker.
func (l *Limiter) CloseBreaker(sent time.Time) {
	if !l.breakerOpen.Load() {
		return
	}
	l.mu.Lock()
	l.events = append(l.events, fmt.Sprintf("close %d", max(0, l.clock.at(sent))))
	l.mu.Unlock()
	l.wake()
}

// BreakerOpenSince reports whether the breaker was open, as far as this process knows, at any
// time since then. The outcome of a call sent during that time says nothing about its entity.
func (l *Limiter) BreakerOpenSince(since time.Time) bool {
	if l.breakerOpen.Load() {
		return true
	}
	until := l.breakerOpenUntil.Load()
	return until != nil && !until.Before(since)
}

// breaker is one state of the circuit breaker, open or closed, until it changes.
type breaker struct {
	healthy context.Context // ends when a closed breaker opens; already ended while open
	open    context.CancelFunc
	closed  chan struct{} // closed when an open breaker closes; already closed while closed
}

func newBreaker(stop bool) *breaker {
	b := &breaker{closed: make(chan struct{})}
	b.healthy, b.open = context.WithCancel(context.Background())
	if stop {
		b.open()
	} else {
		close(b.closed)
	}
	return b
}

// UntilBreakerOpens returns a context that ends when this process learns that the breaker has
// opened. While it is open the context has already ended.
func (l *Limiter) UntilBreakerOpens() context.Context { return l.breaker.Load().healthy }

// BreakerClosed returns a channel that is closed when this process learns that the breaker has
// closed. A process learns it only while it has callers that wait for permits.
func (l *Limiter) BreakerClosed() <-chan struct{} { return l.breaker.Load().closed }

// applyBreakerState applies the breaker state that Redis returns with every reply. The caller
// holds l.mu.
func (l *Limiter) applyBreakerState(a answer) {
	said := func(w refusal) bool { return a.refusalHigh == w || a.refusalLow == w }
	stop := said(refusedByBreaker)
	if stop == l.breakerOpen.Load() || (!stop && (said(refusedByStop) || said(refusedByDayCount))) {
		return // unchanged, or hidden by an emergency stop or a missing day count
	}
	if !stop {
		now := time.Now()
		l.breakerOpenUntil.Store(&now)
	}
	l.breakerOpen.Store(stop)
	former := l.breaker.Swap(newBreaker(stop))
	if stop {
		former.open()
	} else {
		close(former.closed)
	}
	if stop {
		l.metrics.breakerOpen.Set(1)
		l.releaseSlots()
		l.log.Warn("circuit breaker opened; single probes only")
		return
	}
	l.metrics.breakerOpen.Set(0)
	for _, q := range l.queues {
		if q.back.After(a.then) { // rejected demand can be granted now
			q.back = a.then
		}
	}
	l.log.Info("circuit breaker closed; calls resume")
}
