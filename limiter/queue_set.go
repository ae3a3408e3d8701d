package limiter

import (
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
)

// queueSet holds the queues of one source in this process.
type queueSet struct {
	high, low *queue
	held      *heldSlots
	all       []*queue // high, low, and one for each queue key that has waiters
	byKey     map[string]*queue
}

func newQueueSet() queueSet {
	s := queueSet{high: &queue{lane: schemas.High}, low: &queue{lane: schemas.Low}, held: &heldSlots{}, byKey: map[string]*queue{}}
	s.all = []*queue{s.high, s.low}
	return s
}

// ofLane returns the lane's permanent queue. Sources without buckets use no other queues. When another
// queue of the lane is deleted, its counts of granted and rejected slots are added to this queue.
func (s *queueSet) ofLane(lane schemas.Lane) *queue {
	if lane == schemas.High {
		return s.high
	}
	return s.low
}

// live returns the queue in s.all with the key of q. If removeEmpty has deleted q, this can be a
// newer queue with the same key. If s.all has no queue with this key, live inserts q again.
func (s *queueSet) live(q *queue) *queue {
	if q.key == nil {
		return q
	}
	if known := s.byKey[q.keyText]; known != nil {
		return known
	}
	s.byKey[q.keyText] = q
	s.all = append(s.all, q)
	return q
}

// removeEmpty deletes the queues without waiters and slots.
func (s *queueSet) removeEmpty() {
	if len(s.all) == 2 {
		return
	}
	s.all = slices.DeleteFunc(s.all, func(q *queue) bool {
		empty := q.key != nil && q.length == 0 && len(q.slots) == 0
		if empty {
			delete(s.byKey, q.keyText)
			s.ofLane(q.lane).add(q)
		}
		return empty
	})
}

// waiting returns the number of waiters in all queues.
func (s *queueSet) waiting() int {
	n := 0
	for _, q := range s.all {
		n += q.length
	}
	return n
}

// reserve adds a slot that Redis has granted to a queue.
func (s *queueSet) reserve(q *queue, granted slot) {
	q.slots = append(q.slots, granted)
	s.held.reserve(granted)
}

// countHeld returns the number of slots that this process holds (see heldSlots), and how many of them
// belong to LOW.
func (s *queueSet) countHeld() (all, low int) {
	count := func(lane schemas.Lane, n int) {
		all += n
		if lane == schemas.Low {
			low += n
		}
	}
	for _, p := range s.held.given {
		count(p.queue.lane, 1)
	}
	for _, q := range s.all {
		count(q.lane, len(q.slots))
	}
	return all, low
}

// used returns the number of slots granted to this process.
func (s *queueSet) used() (n int64) {
	for _, q := range s.all {
		n += q.used
	}
	return n
}

func (q *queue) add(other *queue) {
	q.used, q.rejected = q.used+other.used, q.rejected+other.rejected
	other.used, other.rejected = 0, 0
}

// retryRejected includes all queues in the next call to Redis, even if Redis has rejected them until a
// time after `now`, because Redis can now grant their slots.
func (s *queueSet) retryRejected(now time.Time) {
	for _, q := range s.all {
		if q.back.After(now) {
			q.back = now
		}
	}
}

// retryAll marks all queues for the next call to Redis, also queues that Redis rejected until a
// later time.
func (s *queueSet) retryAll() {
	for _, q := range s.all {
		if q.key != nil {
			q.back = time.Time{}
		}
	}
}
