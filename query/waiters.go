package query

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/freshet/freshet/schemas"
)

// waiterSet wakes the waiters of an entity. A waiter is an entry in a map: it needs no
// connection, timer or goroutine.
//
// A waiter must be added before the first read of the entity. Then a settle message that arrives
// during or after that read wakes the waiter.
type waiterSet struct {
	seed     maphash.Seed
	shards   [64]shard
	count    atomic.Int64  // number of HTTP requests and streams that wait
	stopping chan struct{} // closed at shutdown: waiting requests respond at once
}

type shard struct {
	mu      sync.Mutex
	waiting map[schemas.Entity]map[*waiter]struct{}
}

// waiter is one HTTP request or stream that waits for settle messages of an entity.
type waiter struct {
	entity   schemas.Entity
	notified chan struct{} // receives a value when the waiter must read the entity again; capacity of one
	// settled is the highest request number in the settle messages of the entity so far.
	settled atomic.Int64
}

func newWaiterSet() *waiterSet {
	b := &waiterSet{seed: maphash.MakeSeed(), stopping: make(chan struct{})}
	for i := range b.shards {
		b.shards[i].waiting = map[schemas.Entity]map[*waiter]struct{}{}
	}
	return b
}

func (b *waiterSet) shard(e schemas.Entity) *shard {
	return &b.shards[maphash.Comparable(b.seed, e)%uint64(len(b.shards))]
}

// add registers a waiter for an entity. The caller must remove it.
func (b *waiterSet) add(e schemas.Entity) *waiter {
	w := &waiter{entity: clone(e), notified: make(chan struct{}, 1)}
	s := b.shard(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting[w.entity]
	if all == nil {
		all = map[*waiter]struct{}{}
		s.waiting[w.entity] = all
	}
	all[w] = struct{}{}
	return w
}

func (b *waiterSet) remove(w *waiter) {
	s := b.shard(w.entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting[w.entity]
	delete(all, w)
	if len(all) == 0 {
		delete(s.waiting, w.entity)
	}
}

// notify wakes all waiters of the entity that the settle message names.
func (b *waiterSet) notify(settled schemas.Settled) {
	s := b.shard(settled.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.waiting[settled.Entity] {
		w.settled.Store(max(w.settled.Load(), settled.Number)) // between Load and Store no other goroutine can write the field `settled`, because each write needs the lock s.mu
		w.notify()
	}
}

// notifyAll wakes all waiters. It is called when the settle subscription is established, because
// settle messages may have been lost before that.
func (b *waiterSet) notifyAll() {
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		for _, all := range s.waiting {
			for w := range all {
				w.notify()
			}
		}
		s.mu.Unlock()
	}
}

func (w *waiter) notify() {
	select {
	case w.notified <- struct{}{}:
	default: // the channel still holds an earlier notification, which wakes the waiter too
	}
}
