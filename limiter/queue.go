package limiter

import (
	"time"

	"github.com/freshet/freshet/schemas"
)

// retryShare limits retries: while other callers wait, at most every fourth permit of a queue
// goes to a caller of AcquireRetry. Entities whose calls failed therefore get only a part of the
// probes of an open breaker, and do not dominate the results by which the upstream is judged. But
// they never starve.
const retryShare = 4

// queue holds the waiters of one queue key in this process, and the slots that were granted to
// them but are not due yet. Sources without buckets have one queue per lane.
type queue struct {
	lane     schemas.Lane
	key      *queueKey // identifies the queue; nil for sources without buckets
	keyText  string    // the queue key as text
	lastCall int       // number of the last call to Redis that included this queue
	fresh    waitList
	retries  waitList // the waiters that called AcquireRetry
	passed   int      // number of waiters of the list `fresh` (no retries) served since the last retry; 0 if no retry waits
	length   int
	slots    []slot    // granted slots that are not due yet, earliest first
	back     time.Time // before this time Redis would reject a call for this queue
	refusal  refusal   // the reason why Redis last rejected slots for this queue
	used     int64     // number of slots that were granted to this queue so far
	rejected int64
}

// push inserts p at the position of its client's next turn.
func (q *queue) push(p *Permit) {
	l := q.of(p)
	l.insert(p, l.place(p))
	q.length++
}

// pushFront inserts p as the first waiter.
func (q *queue) pushFront(p *Permit) {
	l := q.of(p)
	l.insert(p, l.placeFirst(p))
	q.length++
}

func (q *queue) remove(p *Permit) {
	q.of(p).remove(p)
	q.length--
}

// next returns the waiter that is served next, or nil if none waits.
func (q *queue) next() *Permit {
	if q.fresh.first == nil || (q.retries.first != nil && q.passed >= retryShare-1) {
		return q.retries.first
	}
	return q.fresh.first
}

// serve removes and returns the next waiter.
func (q *queue) serve() *Permit {
	p := q.next()
	q.remove(p)
	l := q.of(p)
	l.fair.served = max(l.fair.served, p.turn)
	if q.passed++; p.retry || q.retries.first == nil {
		q.passed = 0
	}
	return p
}

func (q *queue) of(p *Permit) *waitList {
	if p.retry {
		return &q.retries
	}
	return &q.fresh
}

// waitList is a doubly linked list of waiters in the order in which they are served.
type waitList struct {
	first, last *Permit
	fair        fair
}

// insert inserts p in front of the waiter `after`, or at the end of the list if `after` is nil.
func (l *waitList) insert(p, after *Permit) {
	before := l.last
	if after != nil {
		before = after.before
		after.before = p
	} else {
		l.last = p
	}
	if before != nil {
		before.after = p
	} else {
		l.first = p
	}
	p.before, p.after = before, after
}

func (l *waitList) remove(p *Permit) {
	if p.before != nil {
		p.before.after = p.after
	} else {
		l.first = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		l.last = p.before
	}
}
