package consumer

import (
	"container/list"
	"context"
	"sync"
)

// budget bounds the bytes of bodies in memory. Room is reserved, by the estimate of what
// an entity needs, before a permit is asked for. A body that is larger grows its room while
// it is read, and its reading waits for that. One entity at a time may grow beyond the
// limit, or entities that each have a part of their bodies would wait for each other. So
// the bound is the limit and one entity's bodies, whatever the upstream answers.
type budget struct {
	mu      sync.Mutex
	limit   int64
	used    int64
	beyond  *room     // the one that may grow beyond the limit; nil: none does
	growing list.List // of *reservation of rooms that wait to grow, before all others
	waiting list.List // of *reservation, the first comes first
	places  places
}

// room is what one entity's bodies hold of the budget. Its fields are under the budget's
// lock.
type room struct {
	b     *budget
	held  int64
	spare int64 // of held, not used by a body yet
}

type reservation struct {
	client string
	bytes  int64
	place  int64
	ready  chan struct{}
	of     *room // that grows; nil: it is a new one
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
	r := &reservation{client: client, bytes: n, ready: make(chan struct{})}
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

// enter is acquire for an entity whose bodies may turn out to be larger.
func (b *budget) enter(ctx context.Context, client string, n int64) (*room, error) {
	if err := b.acquire(ctx, client, n); err != nil {
		return nil, err
	}
	return &room{b: b, held: n, spare: n}, nil
}

// grow waits until n more bytes may be read into memory, or until ctx ends.
func (r *room) grow(ctx context.Context, n int64) error {
	b := r.b
	b.mu.Lock()
	used := min(n, r.spare)
	r.spare -= used
	more := &reservation{bytes: n - used, ready: make(chan struct{}), of: r}
	if more.bytes == 0 || b.beyond == r || b.growing.Len() == 0 && b.fits(more.bytes) {
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

// set changes what the room holds to n bytes, which are all used; to 0 it ends the room.
func (r *room) set(n int64) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += n - r.held
	r.held, r.spare = n, 0
	if n == 0 && b.beyond == r {
		b.beyond = nil
	}
	b.admit()
}

// grant gives a room more, with the lock held.
func (b *budget) grant(r *reservation) {
	b.used += r.bytes
	r.of.held += r.bytes
	if b.used > b.limit && b.beyond == nil {
		b.beyond = r.of
	}
	close(r.ready)
}

// inUse returns how many bytes are reserved.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
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
	for first := b.growing.Front(); first != nil; first = b.growing.Front() {
		r := first.Value.(*reservation)
		if b.beyond != nil && b.beyond != r.of && !b.fits(r.bytes) {
			return
		}
		b.growing.Remove(first)
		b.grant(r)
	}
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
