package limiter

import (
	"context"
	"fmt"
	"time"
)

// OpenBreaker stops every process's calls to the source because one that was sent then
// was answered as by a sick upstream: all of them, but for one call at a time that
// probes. The first goes out after first, the next after pauses that double up to
// most; both are at least a second. Where both lanes of a process wait, either may
// probe, and a probe has to wait for its policies as any call. It ends when Lift is
// told of a call that went well.
//
// Once it is in force the probes that fail need no report, and a report changes
// nothing but that longer pauses hold; nor does that of a call sent before the last
// stop ended begin another. What has been reserved ahead is given up.
func (l *Limiter) OpenBreaker(first, most time.Duration, sent time.Time) {
	l.mu.Lock()
	l.events = append(l.events, fmt.Sprintf("open %d %d %d", first.Microseconds(), most.Microseconds(), max(0, l.clock.at(sent))))
	if !l.breakerOpen.Load() { // otherwise what is reserved is the next probe
		l.backoffPending = true
		l.releaseSlots()
	}
	l.mu.Unlock()
	l.wake()
}

// CloseBreaker ends a probing stop, because a call that was sent then, after the stop began,
// was answered as by a healthy upstream. The rate comes back from half to the whole
// within ten seconds. A brake and an emergency stop keep their own end. It is meant
// to be called for every healthy answer: it costs nothing while no probing stop is
// known to be in force.
func (l *Limiter) CloseBreaker(sent time.Time) {
	if !l.breakerOpen.Load() {
		return
	}
	l.mu.Lock()
	l.events = append(l.events, fmt.Sprintf("close %d", max(0, l.clock.at(sent))))
	l.mu.Unlock()
	l.wake()
}

// BreakerOpenSince reports whether a probing stop, whichever process began it, is or was
// known here to be in force at any time since then: what a call that was sent then
// came to tells nothing of what it asked for.
func (l *Limiter) BreakerOpenSince(since time.Time) bool {
	if l.breakerOpen.Load() {
		return true
	}
	until := l.breakerOpenUntil.Load()
	return until != nil && !until.Before(since)
}

// breaker is a time in which a probing stop is in force or none is.
type breaker struct {
	healthy context.Context // ends with a time in which none is; has ended where one is
	open    context.CancelFunc
	closed  chan struct{} // closed where none is, or when it ends
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

// UntilBreakerOpens returns a context that ends when a probing stop is known here, and has ended
// while one is.
func (l *Limiter) UntilBreakerOpens() context.Context { return l.breaker.Load().healthy }

// BreakerClosed returns a channel that is closed while no probing stop is known here, or as soon
// as its end is known. While nobody waits for a permit the end is not learned of.
func (l *Limiter) BreakerClosed() <-chan struct{} { return l.breaker.Load().closed }

// applyBreakerState notes whether a probing stop is in force, which Redis says with every
// answer. The caller holds l.mu.
func (l *Limiter) applyBreakerState(a answer) {
	said := func(w refusal) bool { return a.refusalHigh == w || a.refusalLow == w }
	stop := said(refusedByBreaker)
	if stop == l.breakerOpen.Load() || (!stop && (said(refusedByStop) || said(refusedByDayCount))) {
		return // nothing new, or hidden behind what else stops all calls
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
		l.log.Warn("the upstream is sick: all calls are stopped, but for one at a time that probes it")
		return
	}
	l.metrics.breakerOpen.Set(0)
	for _, q := range l.queues {
		if q.back.After(a.then) { // what was refused may be granted now
			q.back = a.then
		}
	}
	l.log.Info("the upstream is well again; calls flow")
}
