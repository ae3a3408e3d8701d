package limiter

import (
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Permit is the right to send one call. It lapses within permitLife.
type Permit struct {
	limiter *Limiter
	queue   *queue
	since   time.Time // it was waited for
	slot    slot
	given   bool          // guarded by limiter.mu
	over    bool          // it is known how its call ended; guarded by limiter.mu
	ready   chan struct{} // has room for one; nil while its waiter does not sleep
	ended   atomic.Bool   // spent, lapsed or released
	spent   time.Time
	written atomic.Pointer[time.Time]

	before, after *Permit // in the queue; guarded by limiter.mu
}

// slot is a reserved time slot, by the local monotonic clock: it may be used
// from notBefore, when it has certainly come, until notAfter, when it may have
// lapsed. at is its time by Redis' clock, in us.
type slot struct {
	notBefore, notAfter time.Time
	at                  int64

	way    *way   // of a class: what it is charged to
	ticket string // names the call in the buckets that know who is under way
	probes bool   // something that is halted
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
		if p.slot.way != nil { // somebody may wait for its place
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
	q := l.standing(p.queue)
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

// queue is one lane's side of this process: who waits, the first one first, and
// what Redis has granted and nobody has yet.
type queue struct {
	lane        schemas.Lane
	class       *class // nil: all of a source without buckets
	id          string // of the class
	asked       int    // for it in the call to Redis of this number
	first, last *Permit
	behind      *Permit // the first of those who stand behind whoever comes; nil: there are none
	length      int
	slots       []slot    // the earliest first
	back        time.Time // Redis asked to come back then for more
	why         why       // it was refused by
	used        int64     // granted, and refused
	refused     int64
}

// push puts p behind all but those who stand behind whoever comes.
func (q *queue) push(p *Permit) { q.insert(p, q.behind) }

func (q *queue) pushFront(p *Permit) { q.insert(p, q.first) }

// pushBehind puts p behind all who are there, and who come before level is called.
func (q *queue) pushBehind(p *Permit) {
	q.insert(p, nil)
	if q.behind == nil {
		q.behind = p
	}
}

// level has who stood behind whoever came stand where they are.
func (q *queue) level() { q.behind = nil }

// insert puts p in front of after; nil: behind all.
func (q *queue) insert(p, after *Permit) {
	before := q.last
	if after != nil {
		before = after.before
		after.before = p
	} else {
		q.last = p
	}
	if before != nil {
		before.after = p
	} else {
		q.first = p
	}
	p.before, p.after = before, after
	q.length++
}

func (q *queue) remove(p *Permit) {
	if q.behind == p {
		q.behind = p.after
	}
	if p.before != nil {
		p.before.after = p.after
	} else {
		q.first = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		q.last = p.before
	}
	q.length--
}
