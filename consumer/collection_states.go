package consumer

import (
	"context"
	"sync"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
)

// maxStates is the maximum number of collections whose states are read together.
const maxStates = 100

// stateReader reads the states of collections in batches. While one batch is read, further reads wait
// and form the next batch.
type stateReader struct {
	store   Collections
	mu      sync.Mutex
	waiting []*stateRead
	reading bool // true while a goroutine reads a batch
}

// stateRead is a request of a goroutine to read the state of one collection, and its result.
type stateRead struct {
	entity schemas.Entity
	state  collection.State
	err    error
	// receives false when the state was read; receives true if the waiting goroutine must read the next
	// batch itself
	next chan bool
}

// read returns the state of a collection.
func (r *stateReader) read(ctx context.Context, e schemas.Entity) (collection.State, error) {
	own := &stateRead{entity: e, next: make(chan bool, 1)}
	r.mu.Lock()
	r.waiting = append(r.waiting, own)
	first := !r.reading
	r.reading = true
	r.mu.Unlock()
	if first || <-own.next {
		r.readBatch(ctx)
	}
	return own.state, own.err
}

// readBatch reads the states of the reads that have waited longest. The caller's own read is one of
// them. Then it makes the goroutine of the first remaining read call readBatch.
func (r *stateReader) readBatch(ctx context.Context) {
	r.mu.Lock()
	n := min(len(r.waiting), maxStates)
	batch := r.waiting[:n:n]
	r.waiting = r.waiting[n:]
	r.mu.Unlock()
	entities := make([]schemas.Entity, n)
	for i, b := range batch {
		entities[i] = b.entity
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), dependencyTimeout) // the end of the caller's context must not abort the other reads
	states, err := r.store.States(limit, entities)
	cancel()
	for i, b := range batch {
		if b.err = err; err == nil {
			b.state = states[i]
		}
	}
	r.mu.Lock()
	r.reading = len(r.waiting) > 0
	if r.reading {
		r.waiting[0].next <- true
	}
	r.mu.Unlock()
	for _, b := range batch {
		b.next <- false
	}
}
