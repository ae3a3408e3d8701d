package consumer

import (
	"container/list"
	"context"
	"sync"
)

// memoryBudget limits the memory for response bodies. The worker reserves an estimated number of bytes
// for an entity before it requests the permit. If the body is larger, the worker reads the rest only
// after it has reserved more. The reservation of one entity at a time may exceed the limit: otherwise
// several entities that hold parts of their bodies could wait for each other forever. So the memory is
// at most the limit plus the bodies of one entity.
type memoryBudget struct {
	mu        sync.Mutex
	limit     int64
	used      int64
	overLimit *reservation // the only reservation that may exceed the limit, or nil
	growing   list.List    // *memoryWaiter elements that enlarge a reservation; served before the elements of `waiting`
	waiting   list.List    // *memoryWaiter elements for new reservations, in the order of fairOrder
	order     fairOrder
}

// reservation is the memory reserved for the response bodies of one entity. The budget's lock
// guards its fields.
type reservation struct {
	b     *memoryBudget
	held  int64
	spare int64 // the part of `held` that no body uses yet, in bytes
}

type memoryWaiter struct {
	client   string
	bytes    int64
	position int64
	ready    chan struct{}
	grows    *reservation // the reservation to enlarge; nil if the waiter wants a new reservation
}

func newMemoryBudget(limit int64) *memoryBudget { return &memoryBudget{limit: limit} }

// acquire reserves n bytes. It waits until n bytes are free or ctx ends. Waiting clients are served
// in turn. While no other reservation exists, n may exceed the limit.
func (b *memoryBudget) acquire(ctx context.Context, client string, n int64) error {
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.fits(n) {
		b.used += n
		b.mu.Unlock()
		return nil
	}
	r := &memoryWaiter{client: client, bytes: n, ready: make(chan struct{})}
	element := b.enqueue(client, r)
	b.mu.Unlock()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-r.ready: // the memory was granted at the moment at which ctx ended, so it is given back
		b.used -= n
	default:
		b.waiting.Remove(element)
	}
	b.admit()
	return context.Cause(ctx)
}

// reserve waits for n bytes like acquire, and returns them as a reservation. The reservation can
// grow if the bodies turn out to be larger than n.
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
	element := b.growing.PushBack(more)
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
	case <-more.ready: // the memory was granted at the moment at which ctx ended; the caller releases it with resize(0)
	default:
		b.growing.Remove(element)
		b.admit()
	}
	return context.Cause(ctx)
}

// resize sets the reservation to n bytes, and marks all of them as used by bodies. 0 releases the
// reservation.
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

// grant enlarges the waiter's reservation and wakes the waiter. The caller holds b.mu.
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

// admit grants waiting reservations as far as the limit allows. The caller holds b.mu.
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

// sizeEstimates estimates the size of the bodies of a facet's next entity: a slowly falling
// maximum of recent sizes.
type sizeEstimates struct {
	mu      sync.Mutex
	byFacet map[string]int64
}

// initialEstimate is the estimate of a facet that was never fetched, in bytes.
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

// record adds the size of an entity's bodies. A larger size raises the estimate at once; a smaller
// size lowers the estimate by 1 %.
func (e *sizeEstimates) record(facet string, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, seen := e.byFacet[facet]
	if !seen {
		last = n
	}
	e.byFacet[facet] = max(n, last-last/100, 1)
}
