package query

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

const (
	// trust is how long an entry is believed while settles are heard, and
	// trustDeaf while they are not. The first bounds what a line that loses
	// something silently may cost, and a worker of an older release that tells of
	// nothing.
	trust     = 30 * time.Second
	trustDeaf = time.Second
	// lookPatience is how long a reader waits for a new look where an older one is
	// remembered.
	lookPatience = 100 * time.Millisecond
)

// memory holds the snapshots that were read last, in front of the store.
//
// Invariants:
//   - While settles are heard, an entry is answered with only if the look into the
//     store that brought it began after the last settle of its entity that was
//     heard, and after the line was last made whole.
//   - What was overtaken is kept, and served when the store can't be read: an older
//     answer with its age before none.
//   - Readers of one entity share one look. A look that a settle overtakes is not
//     shared with those who come after it.
type memory struct {
	store    Store
	guard    *breaker
	cache    *otter.Cache[schemas.Entity, *entry]
	looks    singleflight.Group
	heardAll atomic.Int64 // since when settles are heard (nanoseconds since 1970); 0: they are not
	metrics  *metrics

	seed    maphash.Seed
	stripes [256]stripe
}

// stripe orders settles and the ends of looks of its entities.
type stripe struct {
	mu      sync.Mutex
	settles uint64
}

func newMemory(st Store, most int64, m *metrics) *memory {
	c := &memory{store: st, guard: newBreaker(m.breaker.Set), metrics: m, seed: maphash.MakeSeed()}
	c.cache = otter.Must(&otter.Options[schemas.Entity, *entry]{
		MaximumWeight: uint64(max(1, most)),
		Weigher: func(_ schemas.Entity, e *entry) uint32 {
			return uint32(min(e.weight(), math.MaxUint32)) //nolint:gosec // bounded
		},
	})
	return c
}

// get returns what is stored of an entity, from memory or the store; nil if
// nothing is. An error is the store's.
func (m *memory) get(ctx context.Context, e schemas.Entity, f source.Facet) (*entry, error) {
	known, found := m.cache.GetIfPresent(e)
	if found && m.believes(known, time.Now()) {
		m.metrics.fromMemory.Inc()
		return known, nil
	}
	return m.lookOr(ctx, e, f, known)
}

// lookOr looks into the store, and returns what was known if the store does not
// answer soon.
func (m *memory) lookOr(ctx context.Context, e schemas.Entity, f source.Facet, known *entry) (*entry, error) {
	look := surviving(func() (any, error) { return m.look(ctx, e, f) })
	if known == nil {
		v, err, _ := m.looks.Do(e.String(), look)
		found, _ := v.(*entry)
		return found, err
	}
	looked := m.looks.DoChan(e.String(), look)
	patience := time.NewTimer(lookPatience)
	defer patience.Stop()
	select {
	case r := <-looked:
		if r.Err == nil {
			found, _ := r.Val.(*entry)
			return found, nil
		}
	case <-patience.C:
	}
	m.metrics.fromOlder.Inc()
	return known, nil
}

// believes reports whether an entry is known to be what is stored, or was read a
// moment ago.
func (m *memory) believes(e *entry, now time.Time) bool {
	readAt, heard := e.readAt.Load(), m.heardAll.Load()
	if heard == 0 {
		return now.UnixNano()-readAt < int64(trustDeaf)
	}
	return readAt >= heard && now.UnixNano()-readAt < int64(trust)
}

// look reads the store. It goes on for all who wait, whoever began it.
func (m *memory) look(ctx context.Context, e schemas.Entity, f source.Facet) (*entry, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	e = cloned(e)
	began, settles := time.Now(), m.settles(e)
	snapshot, err := m.guard.get(func() (store.Snapshot, error) { return m.store.Get(ctx, e) })
	if errors.Is(err, store.ErrNotFound) {
		m.keep(e, nil, settles)
		return nil, nil //nolint:nilnil // nothing is stored, and that is no error
	}
	if err != nil {
		return nil, err
	}
	m.metrics.fromStore.Inc()
	found := newEntry(snapshot, f, began, m.weigh)
	m.keep(e, found, settles)
	return found, nil
}

// getAll is get for many entities, which are all of one facet: one look for those
// that are not remembered.
func (m *memory) getAll(ctx context.Context, of []schemas.Entity, f source.Facet) ([]*entry, error) {
	found := make([]*entry, len(of))
	older := make([]*entry, len(of))
	var missing []int
	now := time.Now()
	for i, e := range of {
		known, ok := m.cache.GetIfPresent(e)
		switch {
		case ok && m.believes(known, now):
			found[i] = known
			m.metrics.fromMemory.Inc()
			continue
		case ok:
			older[i] = known
		}
		missing = append(missing, i)
	}
	if len(missing) == 0 {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	asked := make([]schemas.Entity, len(missing))
	settles := make([]uint64, len(missing))
	for j, i := range missing {
		asked[j], settles[j] = cloned(of[i]), m.settles(of[i])
	}
	snapshots, err := m.guard.getAll(func() ([]store.Snapshot, error) { return m.store.GetAll(ctx, asked) })
	for j, i := range missing {
		switch {
		case err == nil && snapshots[j].Version > 0:
			m.metrics.fromStore.Inc()
			found[i] = newEntry(snapshots[j], f, now, m.weigh)
			m.keep(of[i], found[i], settles[j])
		case err == nil:
			m.keep(of[i], nil, settles[j])
		case older[i] != nil:
			m.metrics.fromOlder.Inc()
			found[i] = older[i]
		default:
			return nil, err
		}
	}
	return found, nil
}

func (m *memory) stripe(e schemas.Entity) *stripe {
	return &m.stripes[maphash.Comparable(m.seed, e)%uint64(len(m.stripes))]
}

// settles returns how many settles were heard of an entity's stripe.
func (m *memory) settles(e schemas.Entity) uint64 {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settles
}

// keep remembers what a look found, unless a settle was heard since it began.
func (m *memory) keep(e schemas.Entity, found *entry, settles uint64) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settles != settles {
		return
	}
	if found == nil {
		m.cache.Invalidate(e)
		return
	}
	m.cache.Set(found.Entity, found)
}

// cloned lets a remembered entity keep nothing of the request that named it.
func cloned(e schemas.Entity) schemas.Entity {
	return schemas.Entity{Source: strings.Clone(e.Source), Facet: strings.Clone(e.Facet), Key: strings.Clone(e.Key)}
}

// weigh has the cache weigh an entry again that has grown.
func (m *memory) weigh(e *entry) {
	m.cache.ComputeIfPresent(e.Entity, func(old *entry) (*entry, otter.ComputeOp) {
		if old == e {
			return e, otter.WriteOp
		}
		return old, otter.CancelOp
	})
}

// heard notes that an entity was settled: what is remembered of it may be
// overtaken, and looks under way are.
func (m *memory) heard(e schemas.Entity) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settles++
	m.looks.Forget(e.String())
	if known, ok := m.cache.GetEntryQuietly(e); ok {
		known.Value.readAt.Store(0)
	}
}

// line notes that settles are heard from now on, or no more.
func (m *memory) line(up bool) {
	if up {
		m.heardAll.Store(time.Now().UnixNano())
	} else {
		m.heardAll.Store(0)
	}
}

// empty reports whether nothing is remembered.
func (m *memory) empty() bool { return m.cache.EstimatedSize() == 0 }
