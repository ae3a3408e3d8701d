package consumer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// preemptInterval is how long a record waits for a permit before it can be preempted, and the interval
// of further checks. A preempted record gives its slot and its memory to records of other clients.
// Otherwise the requests of one client could occupy all slots while the breaker of their credential or
// endpoint is open.
const preemptInterval = time.Second

var errPreempted = errors.New("preempted: a record of another client needs the slot or the memory")

// preemptible reports whether the attempt may end while it waits for a permit: its task has a
// slot, and it has not sent a call.
func (a *attempt) preemptible() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.t.hasSlot && !a.goesFirst && a.sent == 0 && !a.preempted
}

// watchWait cancels a wait for a permit with errPreempted as soon as slotQueue.preempt chooses the
// attempt. The caller calls `stop` after the wait.
func (a *attempt) watchWait(cancel context.CancelCauseFunc) (stop func()) {
	var mu sync.Mutex // guards the variables timer and stopped
	var timer *time.Timer
	stopped := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(preemptInterval, func() {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case stopped:
		case a.w.admission.slots.preempt(a.t.client, a.w.memory.waitersOfOthers(a.t.client)):
			stopped = true
			a.mu.Lock()
			a.preempted = true
			a.mu.Unlock()
			cancel(errPreempted)
		default:
			timer.Reset(preemptInterval)
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// preempt reports whether a record of the client is chosen to be preempted: a record that occupies a
// slot and waits for a permit. It is chosen if a client with fewer slots waits for a slot, or if other
// clients wait for memory. For each waiting record of these other clients, preempt chooses at most one
// record. The caller calls the method `preempted` for each chosen record.
func (q *slotQueue) preempt(client string, waitForMemory int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	needed := waitForMemory
	if q.free == 0 {
		for other, all := range q.waiting {
			if fewer := (q.held[client] - q.held[other]) / 2; fewer > 0 {
				needed += min(len(all), fewer)
			}
		}
	}
	if needed <= q.preempting {
		return false
	}
	q.preempting++
	return true
}

// preempted must be called for each record that preempt has chosen: when the record has given its
// slot up, or when it has got its permit first. The record then no longer counts as being
// preempted.
func (q *slotQueue) preempted() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.preempting--
}

// waitersOfOthers returns how many memory waiters belong to other clients.
func (b *memoryBudget) waitersOfOthers(client string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := b.waiting.Front(); e != nil; e = e.Next() {
		if e.Value.(*memoryWaiter).client != client {
			n++
		}
	}
	return n
}
