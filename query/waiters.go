package query

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/freshet/freshet/schemas"
)

// waiterSet wakes those who wait for an entity. A waiter costs a place in a map: no
// connection, no timer, no goroutine of its own.
//
// Whoever waits listens first and looks afterwards; what is settled between the
// two rings, and is seen.
type waiterSet struct {
	seed   maphash.Seed
	shards [64]shard
}

type shard struct {
	mu      sync.Mutex
	waiting map[schemas.Entity]map[*waiter]struct{}
}

// waiter is one who listens.
type waiter struct {
	entity   schemas.Entity
	notified chan struct{} // has room for one ring
	// settled is the highest number of a settle that was heard.
	settled atomic.Int64
}

func newWaiterSet() *waiterSet {
	b := &waiterSet{seed: maphash.MakeSeed()}
	for i := range b.shards {
		b.shards[i].waiting = map[schemas.Entity]map[*waiter]struct{}{}
	}
	return b
}

func (b *waiterSet) shard(e schemas.Entity) *shard {
	return &b.shards[maphash.Comparable(b.seed, e)%uint64(len(b.shards))]
}

// add returns a waiter that is rung from now on, until it leaves.
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

// notify wakes all who wait for an entity.
func (b *waiterSet) notify(settled schemas.Settled) {
	s := b.shard(settled.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.waiting[settled.Entity] {
		w.settled.Store(max(w.settled.Load(), settled.Number)) // written under the lock only
		w.notify()
	}
}

// notifyAll wakes everybody: something may have been missed.
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
	default: // it is rung already, and has not looked yet
	}
}
