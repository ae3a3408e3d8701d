package consumer

import (
	"container/list"
	"context"
	"sync"
)

// budget bounds the bytes of bodies in memory. Room is reserved, by what an
// entity will probably need, before a permit is asked for. What an answer then
// needs more is taken in any case, for it is there already; nobody else gets room
// until that is given back. So the bound holds as well as the estimates do.
type budget struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	waiting list.List // of *reservation, the first comes first
	places  places
}

type reservation struct {
	bytes int64
	place int64
	ready chan struct{}
}

func newBudget(limit int64) *budget { return &budget{limit: limit} }

// acquire waits for room for n bytes, or until ctx ends; clients are admitted in turn.
// One reservation is always admitted, however large.
func (b *budget) acquire(ctx context.Context, client string, n int64) error {
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.fits(n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	r := &reservation{bytes: n, ready: make(chan struct{})}
	place := b.enqueue(client, r)
	b.mu.Unlock()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-r.ready: // admitted at the same moment
		b.used -= n
	default:
		b.waiting.Remove(place)
	}
	b.admit()
	return context.Cause(ctx)
}

func (b *budget) fits(n int64) bool { return b.used == 0 || b.used+n <= b.limit }

// resize changes what one reservation holds; to 0 it ends it.
func (b *budget) resize(from, to int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += to - from
	b.admit()
}

func (b *budget) admit() {
	for first := b.waiting.Front(); first != nil; first = b.waiting.Front() {
		r := first.Value.(*reservation)
		if !b.fits(r.bytes) {
			return
		}
		b.waiting.Remove(first)
		b.places.served = max(b.places.served, r.place)
		b.used += r.bytes
		close(r.ready)
	}
}

// estimates tell how many bytes the bodies of a facet's next entity may have: the
// most that was seen lately.
type estimates struct {
	mu      sync.Mutex
	byFacet map[string]int64
}

// firstEstimate is for a facet of which nothing was seen.
const firstEstimate = 1 << 20

func newEstimates() *estimates { return &estimates{byFacet: map[string]int64{}} }

func (e *estimates) expect(facet string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n, seen := e.byFacet[facet]; seen {
		return n
	}
	return firstEstimate
}

// saw takes in what an entity's bodies had. The estimate rises at once, and
// falls by a hundredth with each that needed less.
func (e *estimates) saw(facet string, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, seen := e.byFacet[facet]
	if !seen {
		last = n
	}
	e.byFacet[facet] = max(n, last-last/100, 1)
}
