package consumer

import (
	"container/list"
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// slotQueue assigns a worker's slots to records. A free slot goes to the client that occupies the
// fewest slots. Among equal clients, the record that has waited longest gets the slot.
type slotQueue struct {
	mu      sync.Mutex
	free    int            // number of free slots
	held    map[string]int // number of occupied slots by client
	waiting map[string][]slotWaiter
	lastSeq int64 // sequence number of the record that was added most recently
	// preempting counts records that preempt has chosen and that still occupy their slot.
	preempting int

	idle        chan *task // passes tasks to the goroutines that wait in serve
	idleServers int        // number of goroutines that wait in serve
}

// slotWaiter is a record in the queue for one of the worker's slots.
type slotWaiter struct {
	task *task
	seq  int64
	// granted is closed when a record that gave its slot up gets a slot again. It is nil for a
	// record that has not started.
	granted chan struct{}
}

func newSlotQueue(slots int) *slotQueue {
	return &slotQueue{free: slots, held: map[string]int{}, waiting: map[string][]slotWaiter{}, idle: make(chan *task)}
}

// add queues a record for a slot. If the record gave its slot up, `granted` is closed when the
// record gets a slot again. For a record that has not started, `granted` is nil.
func (q *slotQueue) add(t *task, granted chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lastSeq++
	q.waiting[t.client] = append(q.waiting[t.client], slotWaiter{t, q.lastSeq, granted})
}

// next assigns a slot to the next record. It reports false if no slot is free or no record waits.
func (q *slotQueue) next() (slotWaiter, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free == 0 || len(q.waiting) == 0 {
		return slotWaiter{}, false
	}
	var client string
	first := true
	for c, all := range q.waiting {
		if n, fewest := q.held[c], q.held[client]; first || n < fewest || (n == fewest && all[0].seq < q.waiting[client][0].seq) {
			client, first = c, false
		}
	}
	all := q.waiting[client]
	next := all[0]
	all[0] = slotWaiter{} // drops the reference to the task, so that it can be garbage collected
	if q.waiting[client] = all[1:]; len(all) == 1 {
		delete(q.waiting, client)
	}
	q.free--
	q.held[client]++
	return next, true
}

// release frees a slot of the client.
func (q *slotQueue) release(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	if q.held[client]--; q.held[client] == 0 {
		delete(q.held, client)
	}
}

// used returns the number of slots that records occupy.
func (q *slotQueue) used() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, held := range q.held {
		n += held
	}
	return n
}

// maxIdle is the maximum number of goroutines that wait for the next task.
const maxIdle = 64

// serve processes a task, and then the tasks that it gets from handOver, until `stop` is closed. At
// most maxIdle goroutines wait for a task. A goroutine is reused because its stack has the size that
// the processing needs; a new stack grows in several steps, and each copies it.
func (q *slotQueue) serve(t *task, stop <-chan struct{}, process func(*task)) {
	for {
		process(t)
		if !q.countIdle(1) {
			return
		}
		select {
		case t = <-q.idle:
			q.countIdle(-1)
		case <-stop:
			q.countIdle(-1)
			return
		}
	}
}

// countIdle adds n to the number of waiting goroutines. It reports false, and adds nothing, if the
// number would exceed maxIdle.
func (q *slotQueue) countIdle(n int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.idleServers+n > maxIdle {
		return false
	}
	q.idleServers += n
	return true
}

// handOver passes a task to a goroutine that waits in serve. It reports false if none waits.
func (q *slotQueue) handOver(t *task) bool {
	select {
	case q.idle <- t:
		return true
	default:
		return false
	}
}

// fairOrder assigns positions in a queue in which clients take turns. A client's next position
// follows the higher of two positions: the client's last position, and the position that was served
// last. The limiter's queues use the same order.
type fairOrder struct {
	served int64
	last   map[string]int64 // last position by client; cleared when the queue is empty
}

func (p *fairOrder) next(client string) int64 {
	if p.last == nil {
		p.last = map[string]int64{}
	}
	place := max(p.served, p.last[client]) + 1
	p.last[client] = place
	return place
}

// enqueue queues a waiter at its client's next position. The caller holds b.mu.
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

// maxWaitingHigh is the maximum number of HIGH records that a worker has read and that wait for a
// slot. A worker serves clients in turn only among these records, so the number must be large. By
// default all clients together have at most as many outstanding requests as the quota allows calls
// in two seconds (access.limits.outstanding). At up to 1,000 calls a second all of them fit.
const maxWaitingHigh = 2048

// maxWaitingRecords returns how many records of a lane may wait for a slot. It is 0 for LOW, whose
// records have no clients that could take turns.
func maxWaitingRecords(lane schemas.Lane) int {
	if lane == schemas.High {
		return maxWaitingHigh
	}
	return 0
}

// newTask returns the task of a record, with its client.
func (w *Worker) newTask(r *kgo.Record, l *ledger) *task {
	t := &task{record: r, ledger: l, ends: w.ends}
	t.client = schemas.ClientOf(t.headers())
	return t
}

// admit waits until the worker can hold one more record, and queues the task for a slot, or behind
// the running task of its entity.
func (w *Worker) admit(ctx context.Context, t *task) {
	if w.recordLimit.Acquire(ctx, 1) != nil {
		return // ctx ended; the record stays uncommitted, and a worker reads it again
	}
	if !w.entityQueues.enter(t) {
		return
	}
	w.slots.add(t, nil)
	w.grantSlots()
}

// grantSlots starts tasks while slots are free. Tasks use the worker's contexts, because the
// caller's context may end earlier. When the worker stops, waiting tasks still get slots one after
// the other, and end at once.
func (w *Worker) grantSlots() {
	for waiter, ok := w.slots.next(); ok; waiter, ok = w.slots.next() {
		t := waiter.task
		t.hasSlot = true
		if waiter.granted != nil {
			close(waiter.granted)
			continue
		}
		if !w.slots.handOver(t) {
			w.tasks.Go(func() {
				w.slots.serve(t, w.life.Done(), func(t *task) {
					w.work(w.life, w.hard, t)
					w.recordLimit.Release(1)
					w.finishTask(t)
					w.releaseSlot(t)
				})
			})
		}
	}
}

// finishTask ends a task and queues the next task of its entity for a slot.
func (w *Worker) finishTask(t *task) {
	if next := w.entityQueues.leave(t); next != nil {
		w.slots.add(next, nil)
		w.grantSlots()
	}
}

// releaseSlot frees the task's slot, if it has one.
func (w *Worker) releaseSlot(t *task) {
	if !t.hasSlot {
		return
	}
	t.hasSlot = false
	w.slots.release(t.client)
	w.grantSlots()
}

// reacquireSlot waits until a task that gave its slot up gets a slot again. The wait also ends soon
// when the worker stops, because the tasks that have slots end then.
func (w *Worker) reacquireSlot(t *task) {
	granted := make(chan struct{})
	w.slots.add(t, granted)
	w.grantSlots()
	<-granted
}
