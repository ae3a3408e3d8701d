package limiter

import (
	"context"
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
	l.pending.ofSource = append(l.pending.ofSource, openEvent(first, maxPause, max(0, l.clock.at(sent))))
	if !l.breakerOpen.Load() { // while the breaker is open, a reserved slot is kept, because it is the next probe
		l.pending.pause = true
		l.releaseSlots()
	}
	l.mu.Unlock()
	l.wake()
}

// CloseBreaker closes the source's circuit breaker, because a call succeeded that was sent at the
// time `sent`, after the breaker had opened. The rate then rises from half to full within ten
// seconds. A backoff or an emergency stop stays in force. Call it for every success: it does
// nothing unless this process knows of an open breaker.
func (l *Limiter) CloseBreaker(sent time.Time) {
	if !l.breakerOpen.Load() {
		return
	}
	l.mu.Lock()
	l.pending.ofSource = append(l.pending.ofSource, closeEvent(max(0, l.clock.at(sent))))
	l.mu.Unlock()
	l.wake()
}

// BreakerOpenSince reports whether, as far as this process knows, the breaker was open at any
// moment from `since` until now. If it was, the failure of a call sent at `since` says nothing
// about the entity that was fetched.
func (l *Limiter) BreakerOpenSince(since time.Time) bool {
	if l.breakerOpen.Load() {
		return true
	}
	until := l.breakerOpenUntil.Load()
	return until != nil && !until.Before(since)
}

// breaker is one period in which the circuit breaker is open or closed. A change of the circuit
// breaker ends the period and starts another.
type breaker struct {
	healthy context.Context // this context ends when the circuit breaker opens; while the breaker is open, it has already ended
	open    context.CancelFunc
	closed  chan struct{} // this channel is open while the circuit breaker is open, and closed while the breaker is closed
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
// opened. While the breaker is open, the returned context has already ended.
func (l *Limiter) UntilBreakerOpens() context.Context { return l.breaker.Load().healthy }

// BreakerClosed returns a channel that is closed when this process learns that the breaker has
// closed. A process learns this only while some of its callers wait for permits.
func (l *Limiter) BreakerClosed() <-chan struct{} { return l.breaker.Load().closed }

// applyBreakerState applies the breaker state that Redis returns with every reply. The caller
// holds l.mu.
func (l *Limiter) applyBreakerState(a answer) {
	said := func(w refusal) bool { return a.refusalHigh == w || a.refusalLow == w }
	stop := said(refusedByBreaker)
	if stop == l.breakerOpen.Load() || (!stop && (said(refusedByStop) || said(refusedByDayCount))) {
		return // the breaker's state is unchanged, or the reply does not show it, because it names an emergency stop or a missing day count
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
		if q.back.After(a.then) { // the breaker has closed, so Redis can now grant the slots that it rejected
			q.back = a.then
		}
	}
	l.log.Info("circuit breaker closed; calls resume")
}
