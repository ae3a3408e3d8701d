package query

import (
	"context"
	"sync"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxLookups is the maximum number of concurrent single-key reads of the store per process.
	maxLookups = 8
	// maxLookupBatch is the maximum number of waiting keys that one read of the store covers.
	maxLookupBatch = 64
)

// lookups reads single snapshots from the store. While maxLookups reads are in flight, further
// keys wait and are then read together. A burst of 1,000 reads of uncached keys takes about 20
// round trips. The circuit breaker measures only the reads of the store, not the time that keys
// wait.
type lookups struct {
	store   Store
	breaker *breaker

	mu       sync.Mutex
	inFlight int
	waiting  []lookup
}

// lookup is one key that waits to be read from the store.
type lookup struct {
	ctx    context.Context //nolint:containedctx // context of the waiting reader
	entity schemas.Entity
	found  chan<- lookupResult // buffered channel, so that a send never blocks
}

type lookupResult struct {
	snapshot store.Snapshot
	err      error
}

// get returns an entity's snapshot, or store.ErrNotFound.
func (l *lookups) get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	found := make(chan lookupResult, 1)
	if l.enter(lookup{ctx, e, found}) {
		defer l.leave() // a panic in a read must free the slot too
		return withBreaker(l.breaker, func() (store.Snapshot, error) { return l.store.Get(ctx, e) })
	}
	select {
	case result := <-found:
		return result.snapshot, result.err
	case <-ctx.Done():
		return store.Snapshot{}, ctx.Err()
	}
}

// enter reserves one of the maxLookups slots and returns true. If no slot is free, it appends the
// key to the waiting keys and returns false.
func (l *lookups) enter(key lookup) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight < maxLookups {
		l.inFlight++
		return true
	}
	l.waiting = append(l.waiting, key)
	return false
}

// leave frees a slot or, if keys wait, uses the slot to read these keys.
func (l *lookups) leave() {
	if batch := l.next(); len(batch) > 0 {
		go l.run(batch)
	}
}

// next returns the next batch of waiting keys. If there are none, it frees the slot.
func (l *lookups) next() []lookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []lookup
	for n, key := range l.waiting {
		if len(batch) == maxLookupBatch {
			l.waiting = append([]lookup(nil), l.waiting[n:]...)
			return batch
		}
		if key.ctx.Err() == nil { // the reader of this key still waits; keys without a waiting reader are dropped
			batch = append(batch, key)
		}
	}
	if l.waiting = nil; len(batch) == 0 {
		l.inFlight--
	}
	return batch
}

// run reads batches until no keys wait.
func (l *lookups) run(batch []lookup) {
	for ; len(batch) > 0; batch = l.next() {
		entities := make([]schemas.Entity, len(batch))
		for i, key := range batch {
			entities[i] = key.entity
		}
		v, err := withRecover(func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), storeTimeout)
			defer cancel()
			return withBreaker(l.breaker, func() ([]store.Snapshot, error) { return l.store.GetAll(ctx, entities) })
		})()
		all, _ := v.([]store.Snapshot)
		for i, key := range batch {
			result := lookupResult{err: err}
			if err == nil {
				if result.snapshot = all[i]; result.snapshot.Version == 0 {
					result.err = store.ErrNotFound
				}
			}
			key.found <- result
		}
	}
}
