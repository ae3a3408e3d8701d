package consumer

import (
	"container/list"
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/schemas"
)

// turns gives a worker's slots to the records that were read. A free slot goes to the
// client that holds the fewest, and of several to the one whose record was read first: a
// client with one record does not wait behind the hundreds of another. Records of one
// client keep their order. The order of calls is decided once more where permits are
// waited for, by limiter.Call.Client.
//
// Only the order of work changes: a ledger commits a prefix, whatever order its records
// end in, and keyed has admitted one record of an entity at most.
type turns struct {
	mu      sync.Mutex
	free    int            // slots
	held    map[string]int // slots by client
	waiting map[string][]turn
	read    int64 // records, in the order in which they were read
}

// turn is a record that waits for a slot.
type turn struct {
	task *task
	read int64
}

func newTurns(slots int) *turns {
	return &turns{free: slots, held: map[string]int{}, waiting: map[string][]turn{}}
}

// add has a record wait for a slot.
func (q *turns) add(t *task) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.read++
	q.waiting[t.client] = append(q.waiting[t.client], turn{t, q.read})
}

// next gives a slot to the record whose turn it is; nil: no slot is free, or no record
// waits.
func (q *turns) next() *task {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free == 0 || len(q.waiting) == 0 {
		return nil
	}
	var client string
	first := true
	for c, all := range q.waiting {
		if n, least := q.held[c], q.held[client]; first || n < least || (n == least && all[0].read < q.waiting[client][0].read) {
			client, first = c, false
		}
	}
	all := q.waiting[client]
	t := all[0].task
	all[0] = turn{} // a slot may hold it no longer than it works
	if q.waiting[client] = all[1:]; len(all) == 1 {
		delete(q.waiting, client)
	}
	q.free--
	q.held[client]++
	return t
}

// end returns the slot that a client's record was given.
func (q *turns) end(client string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free++
	if q.held[client]--; q.held[client] == 0 {
		delete(q.held, client)
	}
}

// places are the places of clients in a queue in which they take turns: a client's next
// place is one behind its last, or behind the place that was served last. It is the order
// of limiter's queues.
type places struct {
	served int64
	last   map[string]int64 // while the queue is not empty
}

func (p *places) next(client string) int64 {
	if p.last == nil {
		p.last = map[string]int64{}
	}
	place := max(p.served, p.last[client]) + 1
	p.last[client] = place
	return place
}

// enqueue has a reservation wait at its client's next place. The caller holds b.mu.
func (b *budget) enqueue(client string, r *reservation) *list.Element {
	if b.waiting.Len() == 0 {
		clear(b.places.last)
	}
	r.place = b.places.next(client)
	for e := b.waiting.Back(); e != nil; e = e.Prev() {
		if e.Value.(*reservation).place <= r.place {
			return b.waiting.InsertAfter(r, e)
		}
	}
	return b.waiting.PushFront(r)
}

// maxWaiting is how many records of HIGH wait for a slot at most: clients are served in
// turn among those alone that were read. Two seconds of HIGH, which is what all clients
// together have outstanding by default, fit up to 1,000 calls a second.
const maxWaiting = 2048

// waitingIn returns how many records of a lane wait for a slot at most. LOW has no clients.
func waitingIn(lane schemas.Lane) int {
	if lane == schemas.High {
		return maxWaiting
	}
	return 0
}

// taskOf returns a record as a task of its client.
func (w *Worker) taskOf(r *kgo.Record, l *ledger) *task {
	t := &task{record: r, ledger: l, counts: w.discharges}
	t.client = schemas.ClientOf(t.headers())
	return t
}

// start waits for room and has the task take its turn, or queues it behind its entity's.
func (w *Worker) start(ctx, hard context.Context, t *task) {
	if w.room.Acquire(ctx, 1) != nil {
		return // ctx ended; the record is read again
	}
	w.metrics.inFlight.Inc()
	if !w.keyed.enter(t) {
		return
	}
	w.turns.add(t)
	w.proceed(ctx, hard)
}

// proceed works tasks as long as there are slots. Those that wait when ctx ends are given
// up as they are worked.
func (w *Worker) proceed(ctx, hard context.Context) {
	for t := w.turns.next(); t != nil; t = w.turns.next() {
		w.tasks.Go(func() {
			for next := t; next != nil; next = w.keyed.leave(next) {
				w.work(ctx, hard, next)
				w.metrics.inFlight.Dec()
				w.room.Release(1)
			}
			w.turns.end(t.client)
			w.proceed(ctx, hard)
		})
	}
}
