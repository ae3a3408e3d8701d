package consumer

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/freshet/freshet/schemas"
)

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

// admission decides when the tasks of records start: one task of each entity at a time, and at most
// Config.MaxInFlight tasks in all.
type admission struct {
	limit    *semaphore.Weighted // limits the sum of records in flight and records that wait for a slot
	slots    *slotQueue
	entities entityQueues
	tasks    *sync.WaitGroup

	// start sets these fields.
	stopping <-chan struct{} // closed when the worker stops
	work     func(t *task)   // processes a task
}

func newAdmission(maxInFlight int, lane schemas.Lane, tasks *sync.WaitGroup) *admission {
	return &admission{
		limit: semaphore.NewWeighted(int64(maxInFlight + maxWaitingRecords(lane))),
		slots: newSlotQueue(maxInFlight), entities: entityQueues{byEntity: map[schemas.Entity]*entityQueue{}}, tasks: tasks,
	}
}

// start must be called before admit. The function `work` processes a task; it uses contexts of its own,
// because the context of the caller of grant may end earlier.
func (q *admission) start(stopping <-chan struct{}, work func(t *task)) {
	q.stopping, q.work = stopping, work
}

// admit waits until the worker can hold one more record, and queues the task for a slot, or behind
// the running task of its entity.
func (q *admission) admit(ctx context.Context, t *task) {
	if q.limit.Acquire(ctx, 1) != nil {
		return // ctx ended; the record stays uncommitted, and a worker reads it again
	}
	if !q.entities.enter(t) {
		return
	}
	q.slots.add(t, nil)
	q.grant()
}

// grant starts tasks while slots are free. When the worker stops, waiting tasks still get slots one
// after the other, and end at once.
func (q *admission) grant() {
	for waiter, ok := q.slots.next(); ok; waiter, ok = q.slots.next() {
		t := waiter.task
		t.hasSlot = true
		if waiter.granted != nil {
			close(waiter.granted)
			continue
		}
		if !q.slots.handOver(t) {
			q.tasks.Go(func() {
				q.slots.serve(t, q.stopping, func(t *task) {
					q.work(t)
					q.limit.Release(1)
					q.finish(t)
					q.release(t)
				})
			})
		}
	}
}

// finish ends a task and queues the next task of its entity for a slot.
func (q *admission) finish(t *task) {
	if next := q.entities.leave(t); next != nil {
		q.slots.add(next, nil)
		q.grant()
	}
}

// release frees the task's slot, if it has one.
func (q *admission) release(t *task) {
	if !t.hasSlot {
		return
	}
	t.hasSlot = false
	q.slots.release(t.client)
	q.grant()
}

// reacquire waits until a task that gave its slot up gets a slot again. The wait also ends soon
// when the worker stops, because the tasks that have slots end then.
func (q *admission) reacquire(t *task) {
	granted := make(chan struct{})
	q.slots.add(t, granted)
	q.grant()
	<-granted
}

// requeue frees the slot of a preempted task and waits until its client's next turn gives it a slot
// again. It reports false if ctx ended.
func (q *admission) requeue(ctx context.Context, t *task) bool {
	q.release(t)
	q.slots.preempted()
	q.reacquire(t)
	return ctx.Err() == nil
}

// entityQueues serialises the tasks of each entity. Tasks of different entities run concurrently,
// also within one partition.
type entityQueues struct {
	mu       sync.Mutex
	byEntity map[schemas.Entity]*entityQueue // has an entry only for entities with a running task
}

// entityQueue holds the tasks that wait for the running task of their entity.
type entityQueue struct{ waiting []*task }

// enter reports whether the task may start. It queues the task if another task of its entity runs.
func (k *entityQueues) enter(t *task) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l, busy := k.byEntity[t.request.Entity]; busy {
		l.waiting = append(l.waiting, t)
		return false
	}
	k.byEntity[t.request.Entity] = &entityQueue{}
	return true
}

// tryEnter reports whether the task may start. Unlike enter, it never queues the task.
func (k *entityQueues) tryEnter(t *task) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, busy := k.byEntity[t.request.Entity]; busy {
		return false
	}
	k.byEntity[t.request.Entity] = &entityQueue{}
	return true
}

// leave ends a task and returns the next task of its entity, or nil. If the ended task has stored a
// failure or a snapshot, leave copies its failedNumber or stored.Version to the next task.
func (k *entityQueues) leave(t *task) *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.byEntity[t.request.Entity]
	if len(l.waiting) == 0 {
		delete(k.byEntity, t.request.Entity)
		return nil
	}
	next := l.waiting[0]
	l.waiting = l.waiting[1:]
	next.failedNumber = max(next.failedNumber, t.failedNumber)
	if t.stored.Version > next.stored.Version {
		next.stored.Version, next.stored.CheckedAt = t.stored.Version, t.stored.CheckedAt
	}
	return next
}
