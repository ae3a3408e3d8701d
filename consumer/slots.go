package consumer

import (
	"container/list"
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// slotQueue gives a worker's slots to the records that were read. A free slot goes to the
// client that holds the fewest, and of several to the one whose record was read first: a
// client with one record does not wait behind the hundreds of another. Records of one
// client keep their order. The order of calls is decided once more where permits are
// waited for, by limiter.Call.Client.
//
// Only the order of work changes: a ledger commits a prefix, whatever order its records
// end in, and keyed has admitted one record of an entity at most.
type slotQueue struct {
	mu      sync.Mutex
	free    int            // slots
	held    map[string]int // slots by client
	waiting map[string][]slotWaiter
	lastSeq int64 // records, in the order in which they were read
	// preempting counts the records that preempt chose and that have not given their slots back.
	preempting int
}

// slotWaiter is a record that waits for a slot.
type slotWaiter struct {
	task *task
	seq  int64
	// granted is closed when a record that gave its slot back has one again; nil: the
	// record has not begun.
	granted chan struct{}
}

func newSlotQueue(slots int) *slotQueue {
	return &slotQueue{free: slots, held: map[string]int{}, waiting: map[string][]slotWaiter{}}
}

// add has a record wait for a slot. A record that had one passes the channel that is closed
// when it has one again.
func (q *slotQueue) add(t *task, granted chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastSeq++
	q.waiting[t.client] = append(q.waiting[t.client], slotWaiter{t, q.lastSeq, granted})
}

// next gives a slot to the record whose turn it is. It reports false if no slot is free or
// no record waits.
func (q *slotQueue) next() (slotWaiter, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free == 0 || len(q.waiting) == 0 {
		return slotWaiter{}, false
	}
	var client string
	first := true
	for c, all := range q.waiting {
		if n, least := q.held[c], q.held[client]; first || n < least || (n == least && all[0].seq < q.waiting[client][0].seq) {
			client, first = c, false
		}
	}
	all := q.waiting[client]
	one := all[0]
	all[0] = slotWaiter{} // so that the array does not keep the task
	if q.waiting[client] = all[1:]; len(all) == 1 {
		delete(q.waiting, client)
	}
	q.free--
	q.held[client]++
	return one, true
}

// release returns the slot that a client's record was given.
func (q *slotQueue) release(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	if q.held[client]--; q.held[client] == 0 {
		delete(q.held, client)
	}
}

// fairOrder are the places of clients in a queue in which they take turns: a client's next
// place is one behind its last, or behind the place that was served last. It is the order
// of limiter's queues.
type fairOrder struct {
	served int64
	last   map[string]int64 // while the queue is not empty
}

func (p *fairOrder) next(client string) int64 {
	if p.last == nil {
		p.last = map[string]int64{}
	}
	place := max(p.served, p.last[client]) + 1
	p.last[client] = place
	return place
}

// enqueue has a reservation wait at its client's next place. The caller holds b.mu.
func (b *memoryBudget) enqueue(client string, r *memoryWaiter) *list.Element {
	if b.waiting.Len() == 0 {
		clear(b.order.last)
	}
	r.position = b.order.next(client)
	for e := b.waiting.Back(); e != nil; e = e.Prev() {
		if e.Value.(*memoryWaiter).position <= r.position {
			return b.waiting.InsertAfter(r, e)
		}
	}
	return b.waiting.PushFront(r)
}

// maxWaitingHigh is how many records of HIGH wait for a slot at most: clients are served in
// turn among those alone that were read. Two seconds of HIGH, which is what all clients
// together have outstanding by default, fit up to 1,000 calls a second.
const maxWaitingHigh = 2048

// maxWaitingRecords returns how many records of a lane wait for a slot at most. LOW has no clients.
func maxWaitingRecords(lane schemas.Lane) int {
	if lane == schemas.High {
		return maxWaitingHigh
	}
	return 0
}

// newTask returns a record as a task of its client.
func (w *Worker) newTask(r *kgo.Record, l *ledger) *task {
	t := &task{record: r, ledger: l, releases: w.releases}
	t.client = schemas.ClientOf(t.headers())
	return t
}

// admit waits for room in memory and has the task wait for a slot, or queues it behind its
// entity's.
func (w *Worker) admit(ctx context.Context, t *task) {
	if w.recordLimit.Acquire(ctx, 1) != nil {
		return // ctx ended; the record is read again
	}
	if !w.entityQueues.enter(t) {
		return
	}
	w.slots.add(t, nil)
	w.grantSlots()
}

// grantSlots hands out slots as long as there are some. A task lives as long as the worker: its
// caller's context may end before. Tasks that wait when the worker stops are given up as they
// are worked.
func (w *Worker) grantSlots() {
	for one, ok := w.slots.next(); ok; one, ok = w.slots.next() {
		t := one.task
		t.hasSlot = true
		w.metrics.inFlight.Inc()
		if one.granted != nil {
			close(one.granted)
			continue
		}
		w.tasks.Go(func() {
			w.work(w.life, w.hard, t)
			w.recordLimit.Release(1)
			w.finishTask(t)
			w.releaseSlot(t)
		})
	}
}

// finishTask ends a task of an entity and has the next one of the entity wait for a slot.
func (w *Worker) finishTask(t *task) {
	if next := w.entityQueues.leave(t); next != nil {
		w.slots.add(next, nil)
		w.grantSlots()
	}
}

// releaseSlot gives the task's slot back, if it has one.
func (w *Worker) releaseSlot(t *task) {
	if !t.hasSlot {
		return
	}
	t.hasSlot = false
	w.metrics.inFlight.Dec()
	w.slots.release(t.client)
	w.grantSlots()
}

// reacquireSlot waits for a slot for a task that gave its own back. The wait ends soon also
// when the worker stops: the tasks that have a slot end then.
func (w *Worker) reacquireSlot(t *task) {
	granted := make(chan struct{})
	w.slots.add(t, granted)
	w.grantSlots()
	<-granted
}
