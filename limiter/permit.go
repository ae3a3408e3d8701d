package limiter

import (
	"sync/atomic"
	"time"
)

// Permit is the right to send one call. It expires permitLife after its slot.
type Permit struct {
	limiter     *Limiter
	queue       *queue
	since       time.Time // the time when Acquire was called
	retry       bool      // the caller's last upstream call failed (AcquireRetry)
	again       bool      // the caller's last permit expired (Reacquire)
	client      string    // the client that the call is made for
	turn        int64     // turn in the fair queue (see fair); guarded by limiter.mu
	slot        slot
	given       bool          // true if the permit has a slot; guarded by limiter.mu
	endReported bool          // true if ReportEnd was called; guarded by limiter.mu
	ready       chan struct{} // wakes the caller in Acquire; capacity 1; nil until Acquire sleeps
	ended       atomic.Bool   // true if the permit was spent or released, or has expired
	spent       time.Time
	written     atomic.Pointer[time.Time]

	before, after *Permit // the waiters before and after this one in the wait list; guarded by limiter.mu
}

// slot is a point in time that Redis reserved for one call. The call can be sent from notBefore to
// notAfter (local monotonic clock). The slot's time by Redis' clock, in µs, is in the field `at`.
type slot struct {
	notBefore, notAfter time.Time
	at                  int64

	candidate *candidate // the credential and costs charged; nil for sources without buckets
	ticket    string     // identifies the call in buckets that count calls in flight
	probe     bool       // true if the call probes an open scope breaker
	// sourceProbe means that the call probes the source. After a backoff, and while the source's
	// breaker is open, Redis grants only single probes.
	sourceProbe bool
}

// Spend uses up the permit, and returns true if the call can be sent now. It returns false if the
// permit is not due yet, has expired, or was spent or released before.
func (p *Permit) Spend() bool {
	now := time.Now()
	if now.Before(p.slot.notBefore) || !p.ended.CompareAndSwap(false, true) {
		return false
	}
	l := p.limiter
	if now.After(p.slot.notAfter) {
		l.mu.Lock()
		l.alloc.lapse(p.slot, now, p.again)
		full := l.alloc.queues.held.full
		l.mu.Unlock()
		if p.slot.candidate != nil || full { // another caller can get an in-flight slot or another slot
			l.wake()
		}
		return false
	}
	p.spent = now
	if h := l.alloc.queues.held; h.limited.Load() {
		l.mu.Lock()
		h.spend()
		full := h.full
		l.mu.Unlock()
		if full { // now there can be room for another slot
			l.wake()
		}
	}
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
	q := l.alloc.queues.live(p.queue)
	q.slots = append([]slot{p.slot}, q.slots...)
	l.mu.Unlock()
	l.wake()
}

// Written records that the HTTP request was written to the connection. The limiter measures the
// jitter from the times of Written and Answered.
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
