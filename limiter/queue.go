package limiter

import (
	"time"

	"github.com/freshet/freshet/schemas"
)

// retryShare is which permit of a line goes to a retry while others wait, at most. The
// entities for which an upstream is taken to be sick are not those that probe it then, nor
// are they, when they go on, most of the calls by which that is judged; and none of them
// waits for ever.
const retryShare = 4

// queue is one lane's side of this process: who waits, and what Redis has granted and
// nobody has yet.
type queue struct {
	lane     schemas.Lane
	key      *queueKey // nil: all of a source without buckets
	keyText  string    // of the class
	lastCall int       // for it in the call to Redis of this number
	fresh    waitList
	retries  waitList // of those whose last call failed
	passed   int      // how many of fresh were served since one of retries, while some of those waited
	length   int
	slots    []slot    // the earliest first
	back     time.Time // Redis asked to come back then for more
	refusal  refusal   // it was refused by
	used     int64     // granted, and refused
	refused  int64
}

// push puts p in the line of its kind, where its client's turn is.
func (q *queue) push(p *Permit) {
	l := q.of(p)
	l.insert(p, l.place(p))
	q.length++
}

// pushFront puts p in front of those of its kind.
func (q *queue) pushFront(p *Permit) {
	l := q.of(p)
	l.insert(p, l.placeFirst(p))
	q.length++
}

func (q *queue) remove(p *Permit) {
	q.of(p).remove(p)
	q.length--
}

// next returns who is served next; nil: nobody waits.
func (q *queue) next() *Permit {
	if q.fresh.first == nil || (q.retries.first != nil && q.passed >= retryShare-1) {
		return q.retries.first
	}
	return q.fresh.first
}

// serve takes the next out.
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

// waitList is who waits, the first one first.
type waitList struct {
	first, last *Permit
	fair        fair
}

// insert puts p in front of after; nil: behind all.
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
