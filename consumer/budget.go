package consumer

import (
	"container/list"
	"context"
	"sync"
)

// memoryBudget bounds the bytes of bodies in memory. Room is reserved, by the estimate of what
// an entity needs, before a permit is asked for. A body that is larger grows its room while
// it is read, and its reading waits for that. One entity at a time may grow beyond the
// limit, or entities that each have a part of their bodies would wait for each other. So
// the bound is the limit and one entity's bodies, whatever the upstream answers.
type memoryBudget struct {
	mu        sync.Mutex
	limit     int64
	used      int64
	overLimit *reservation // the one that may grow beyond the limit; nil: none does
	growing   list.List    // of *reservation of rooms that wait to grow, before all others
	waiting   list.List    // of *reservation, the first comes first
	order     fairOrder
}

// reservation is what one entity's bodies hold of the budget. Its fields are under the budget's
// lock.
type reservation struct {
	b     *memoryBudget
	held  int64
	spare int64 // of held, not used by a body yet
}

type memoryWaiter struct {
	client   string
	bytes    int64
	position int64
	ready    chan struct{}
	grows    *reservation // that grows; nil: it is a new one
}

func newMemoryBudget(limit int64) *memoryBudget { return &memoryBudget{limit: limit} }

// acquire waits for room for n bytes, or until ctx ends; clients are admitted in turn.
// One reservation is always admitted, however large.
func (b *memoryBudget) acquire(ctx context.Context, client string, n int64) error {
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.fits(n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	r := &memoryWaiter{client: client, bytes: n, ready: make(chan struct{})}
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

// reserve is acquire for an entity whose bodies may turn out to be larger.
func (b *memoryBudget) reserve(ctx context.Context, client string, n int64) (*reservation, error) {
	if err := b.acquire(ctx, client, n); err != nil {
		return nil, err
	}
	return &reservation{b: b, held: n, spare: n}, nil
}

// grow waits until n more bytes may be read into memory, or until ctx ends.
func (r *reservation) grow(ctx context.Context, n int64) error {
	b := r.b
	b.mu.Lock()
	used := min(n, r.spare)
	r.spare -= used
	more := &memoryWaiter{bytes: n - used, ready: make(chan struct{}), grows: r}
	if more.bytes == 0 || b.overLimit == r || b.growing.Len() == 0 && b.fits(more.bytes) {
		b.grant(more)
		b.mu.Unlock()
		return nil
	}
	place := b.growing.PushBack(more)
	b.admit()
	b.mu.Unlock()
	select {
	case <-more.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-more.ready: // granted at the same moment; the room's end gives it back
	default:
		b.growing.Remove(place)
		b.admit()
	}
	return context.Cause(ctx)
}

// resize changes what the room holds to n bytes, which are all used; to 0 it ends the room.
func (r *reservation) resize(n int64) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n - r.held
	r.held, r.spare = n, 0
	if n == 0 && b.overLimit == r {
		b.overLimit = nil
	}
	b.admit()
}

// grant gives a room more, with the lock held.
func (b *memoryBudget) grant(r *memoryWaiter) {
	b.used += r.bytes
	r.grows.held += r.bytes
	if b.used > b.limit && b.overLimit == nil {
		b.overLimit = r.grows
	}
	close(r.ready)
}

// inUse returns how many bytes are reserved.
func (b *memoryBudget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

func (b *memoryBudget) fits(n int64) bool { return b.used == 0 || b.used+n <= b.limit }

// resize changes what one reservation holds; to 0 it ends it.
func (b *memoryBudget) resize(from, to int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += to - from
	b.admit()
}

func (b *memoryBudget) admit() {
	for first := b.growing.Front(); first != nil; first = b.growing.Front() {
		r := first.Value.(*memoryWaiter)
		if b.overLimit != nil && b.overLimit != r.grows && !b.fits(r.bytes) {
			return
		}
		b.growing.Remove(first)
		b.grant(r)
	}
	for first := b.waiting.Front(); first != nil; first = b.waiting.Front() {
		r := first.Value.(*memoryWaiter)
		if !b.fits(r.bytes) {
			return
		}
		b.waiting.Remove(first)
		b.order.served = max(b.order.served, r.position)
		b.used += r.bytes
		close(r.ready)
	}
}

// sizeEstimates tell how many bytes the bodies of a facet's next entity may have: the
// most that was seen lately.
type sizeEstimates struct {
	mu      sync.Mutex
	byFacet map[string]int64
}

// initialEstimate is for a facet of which nothing was seen.
const initialEstimate = 1 << 20

func newSizeEstimates() *sizeEstimates { return &sizeEstimates{byFacet: map[string]int64{}} }

func (e *sizeEstimates) estimate(facet string) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n, seen := e.byFacet[facet]; seen {
		return n
	}
	return initialEstimate
}

// record takes in what an entity's bodies had. The estimate rises at once, and
// falls by a hundredth with each that needed less.
func (e *sizeEstimates) record(facet string, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, seen := e.byFacet[facet]
	if !seen {
		last = n
	}
	e.byFacet[facet] = max(n, last-last/100, 1)
}
