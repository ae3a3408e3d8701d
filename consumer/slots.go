package consumer

import (
	"container/list"
	"sync"
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
