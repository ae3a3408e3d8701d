package limiter

import (
	"sync/atomic"
	"time"
)

// Permit is the right to send one call. It expires permitLife after its slot.
type Permit struct {
	limiter     *Limiter
	queue       *queue
	since       time.Time // when Acquire was called
	retry       bool      // the caller's last call failed
	client      string    // of the call
	turn        int64     // its turn in fair queueing; guarded by limiter.mu
	slot        slot
	given       bool          // it has a slot; guarded by limiter.mu
	endReported bool          // ReportEnd was called; guarded by limiter.mu
	ready       chan struct{} // capacity 1; nil until Acquire sleeps
	ended       atomic.Bool   // spent, expired or released
	spent       time.Time
	written     atomic.Pointer[time.Time]

	before, after *Permit // links of the wait list; guarded by limiter.mu
}

// slot is a reserved time slot. It can be used from notBefore to notAfter, by the local
// monotonic clock. at is its time by Redis' clock, in us.
type slot struct {
	notBefore, notAfter time.Time
	at                  int64

	candidate *candidate // the costs charged; nil for sources without buckets
	ticket    string     // identifies the call in buckets that count calls in flight
	probe     bool       // the call probes an open scope breaker
}

// Spend uses the permit up. It reports false, and the call must not be sent, if the permit has
// expired, is not due yet, or was spent or released before.
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
		if p.slot.candidate != nil { // another caller can use its in-flight slot
			l.wake()
		}
		return false
	}
	p.spent = now
	l.metrics.spent(p.queue.lane, now)
	return true
}

// Release passes an unspent permit to the next waiter. After Spend it has no effect.
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

// Written records that the request was written. With Answered it measures the jitter.
func (p *Permit) Written() {
	now := time.Now()
	p.written.Store(&now)
	p.limiter.jitter.wrote(now.Sub(p.spent))
}

// Answered records that the first byte of the response arrived.
func (p *Permit) Answered() {
	if written := p.written.Load(); written != nil {
		p.limiter.jitter.answered(*written, time.Since(*written))
	}
}
