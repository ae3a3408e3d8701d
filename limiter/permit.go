package limiter

import (
	"sync/atomic"
	"time"
)

// Permit is the right to send one call. It lapses within permitLife.
type Permit struct {
	limiter     *Limiter
	queue       *queue
	since       time.Time // it was waited for
	retry       bool      // of a call like one that failed
	client      string    // of the call
	turn        int64     // in its line; guarded by limiter.mu
	slot        slot
	given       bool          // guarded by limiter.mu
	endReported bool          // it is known how its call ended; guarded by limiter.mu
	ready       chan struct{} // has room for one; nil while its waiter does not sleep
	ended       atomic.Bool   // spent, lapsed or released
	spent       time.Time
	written     atomic.Pointer[time.Time]

	before, after *Permit // in the queue; guarded by limiter.mu
}

// slot is a reserved time slot, by the local monotonic clock: it may be used
// from notBefore, when it has certainly come, until notAfter, when it may have
// lapsed. at is its time by Redis' clock, in us.
type slot struct {
	notBefore, notAfter time.Time
	at                  int64

	candidate *candidate // of a class: what it is charged to
	ticket    string     // names the call in the buckets that know who is under way
	probe     bool       // something that is halted
}

// Spend reports whether the call may be sent now, and if so uses the permit up.
// A permit that has lapsed, or was spent or released before, may not be used.
func (p *Permit) Spend() bool {
	now := time.Now()
	if now.Before(p.slot.notBefore) || !p.ended.CompareAndSwap(false, true) {
		return false
	}
	l := p.limiter
	if now.After(p.slot.notAfter) {
		l.metrics.lapsed.Inc()
		l.mu.Lock()
		l.refund(p.slot)
		l.mu.Unlock()
		if p.slot.candidate != nil { // somebody may wait for its place
			l.wake()
		}
		return false
	}
	p.spent = now
	l.metrics.spent(p.queue.lane, now)
	return true
}

// Release hands a permit that was not spent to the next waiter. After Spend it
// does nothing.
func (p *Permit) Release() {
	if !p.ended.CompareAndSwap(false, true) {
		return
	}
	l := p.limiter
	l.mu.Lock()
	q := l.liveQueue(p.queue)
	q.slots = append([]slot{p.slot}, q.slots...)
	l.mu.Unlock()
	l.wake()
}

// Written and Answered are told when the request was written and when the first
// byte of its answer came: from that the jitter is measured.
func (p *Permit) Written() {
	now := time.Now()
	p.written.Store(&now)
	p.limiter.jitter.wrote(now.Sub(p.spent))
}

// Answered is told with the first byte of the answer.
func (p *Permit) Answered() {
	if written := p.written.Load(); written != nil {
		p.limiter.jitter.answered(*written, time.Since(*written))
	}
}
