package limiter

import (
	"context"
	"fmt"
	"time"
)

// Probe stops every process's calls to the source because one that was sent then
// was answered as by a sick upstream: all of them, but for one call at a time that
// probes. The first goes out after first, the next after pauses that double up to
// most; both are at least a second. Where both lanes of a process wait, either may
// probe, and a probe has to wait for its policies as any call. It ends when Lift is
// told of a call that went well.
//
// Once it is in force the probes that fail need no report, and a report changes
// nothing but that longer pauses hold; nor does that of a call sent before the last
// stop ended begin another. What has been reserved ahead is given up.
func (l *Limiter) Probe(first, most time.Duration, sent time.Time) {
	l.mu.Lock()
	l.tell = append(l.tell, fmt.Sprintf("probe %d %d %d", first.Microseconds(), most.Microseconds(), max(0, l.clock.at(sent))))
	if !l.probing.Load() { // otherwise what is reserved is the next probe
		l.braking = true
		l.giveUp()
	}
	l.mu.Unlock()
	l.wake()
}

// Lift ends a probing stop, because a call that was sent then, after the stop began,
// was answered as by a healthy upstream. The rate comes back from half to the whole
// within ten seconds. A brake and an emergency stop keep their own end. It is meant
// to be called for every healthy answer: it costs nothing while no probing stop is
// known to be in force.
func (l *Limiter) Lift(sent time.Time) {
	if !l.probing.Load() {
		return
	}
	l.mu.Lock()
	l.tell = append(l.tell, fmt.Sprintf("lift %d", max(0, l.clock.at(sent))))
	l.mu.Unlock()
	l.wake()
}

// Probed reports whether a probing stop, whichever process began it, is or was
// known here to be in force at any time since then: what a call that was sent then
// came to tells nothing of what it asked for.
func (l *Limiter) Probed(since time.Time) bool {
	if l.probing.Load() {
		return true
	}
	until := l.probed.Load()
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

// Healthy returns a context that ends when a probing stop is known here, and has ended
// while one is.
func (l *Limiter) Healthy() context.Context { return l.breaker.Load().healthy }

// Closed returns a channel that is closed while no probing stop is known here, or as soon
// as its end is known. While nobody waits for a permit the end is not learned of.
func (l *Limiter) Closed() <-chan struct{} { return l.breaker.Load().closed }

// learn notes whether a probing stop is in force, which Redis says with every
// answer. The caller holds l.mu.
func (l *Limiter) learn(a answer) {
	said := func(w why) bool { return a.whyHigh == w || a.whyLow == w }
	stop := said(whyProbing)
	if stop == l.probing.Load() || (!stop && (said(whyStopped) || said(whyUncounted))) {
		return // nothing new, or hidden behind what else stops all calls
	}
	if !stop {
		now := time.Now()
		l.probed.Store(&now)
	}
	l.probing.Store(stop)
	former := l.breaker.Swap(newBreaker(stop))
	if stop {
		former.open()
	} else {
		close(former.closed)
	}
	if stop {
		l.metrics.probing.Set(1)
		l.giveUp()
		l.log.Warn("the upstream is sick: all calls are stopped, but for one at a time that probes it")
		return
	}
	l.metrics.probing.Set(0)
	for _, q := range l.lines {
		if q.back.After(a.then) { // what was refused may be granted now
			q.back = a.then
		}
	}
	l.log.Info("the upstream is well again; calls flow")
}
