package query

import (
	"context"
	"sync"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxLookups is how many reads of the store for single keys are in flight in a process.
	maxLookups = 8
	// maxLookupBatch is how many keys the reads that come meanwhile take together.
	maxLookupBatch = 64
)

// lookups reads single snapshots from the store. While maxLookups reads are in flight,
// further keys wait and are read together: a burst of a thousand readers of new keys is some
// twenty round trips, and not a thousand that wait for each other.
// The circuit breaker judges the reads of the store, not the time that keys wait for them.
type lookups struct {
	store Store
	guard *breaker

	mu       sync.Mutex
	inFlight int
	waiting  []lookup
}

// lookup is one key that waits.
type lookup struct {
	ctx    context.Context //nolint:containedctx // of the reader, which may leave
	entity schemas.Entity
	found  chan<- lookupResult // has room for it
}

type lookupResult struct {
	snapshot store.Snapshot
	err      error
}

// get returns an entity's snapshot, or store.ErrNotFound.
func (l *lookups) get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	found := make(chan lookupResult, 1)
	if l.enter(lookup{ctx, e, found}) {
		defer l.leave() // also after a panic
		return withBreaker(l.guard, func() (store.Snapshot, error) { return l.store.Get(ctx, e) })
	}
	select {
	case f := <-found:
		return f.snapshot, f.err
	case <-ctx.Done():
		return store.Snapshot{}, ctx.Err()
	}
}

// enter reports whether the caller reads by itself; otherwise its key waits.
func (l *lookups) enter(k lookup) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight < maxLookups {
		l.inFlight++
		return true
	}
	l.waiting = append(l.waiting, k)
	return false
}

// leave ends a read. If keys wait, its place goes to them.
func (l *lookups) leave() {
	if batch := l.next(); len(batch) > 0 {
		go l.run(batch)
	}
}

// next returns the keys that are read next; none: nothing waits, and the place is free.
func (l *lookups) next() []lookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []lookup
	for n, k := range l.waiting {
		if len(batch) == maxLookupBatch {
			l.waiting = append([]lookup(nil), l.waiting[n:]...)
			return batch
		}
		if k.ctx.Err() == nil { // otherwise its reader has left
			batch = append(batch, k)
		}
	}
	if l.waiting = nil; len(batch) == 0 {
		l.inFlight--
	}
	return batch
}

// run reads batches until nothing waits.
func (l *lookups) run(batch []lookup) {
	for ; len(batch) > 0; batch = l.next() {
		of := make([]schemas.Entity, len(batch))
		for i, k := range batch {
			of[i] = k.entity
		}
		v, err := withRecover(func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), storeTimeout)
			defer cancel()
			return withBreaker(l.guard, func() ([]store.Snapshot, error) { return l.store.GetAll(ctx, of) })
		})()
		all, _ := v.([]store.Snapshot)
		for i, k := range batch {
			f := lookupResult{err: err}
			if err == nil {
				if f.snapshot = all[i]; f.snapshot.Version == 0 {
					f.err = store.ErrNotFound
				}
			}
			k.found <- f
		}
	}
}
