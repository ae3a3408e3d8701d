package query

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"math"
	"strconv"
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
	// cacheTTL is how long an entry is believed while settles are heard, and
	// trustDeaf while they are not. The first bounds what a line that loses
	// something silently may cost, and a worker of an older release that tells of
	// nothing.
	cacheTTL        = 30 * time.Second
	disconnectedTTL = time.Second
	// fallbackTimeout is how long a reader waits for a new look where an older one is
	// remembered.
	fallbackTimeout = 100 * time.Millisecond
)

// snapshotCache holds the snapshots that were read last, in front of the store.
//
// Invariants:
//   - While settles are heard, an entry is answered with as what is stored only if
//     the look that brought it began after the last settle of its entity that was
//     heard, and after the line was last made whole.
//   - What was overtaken is kept, and answered with as older when the store can't be
//     read soon: an older answer with its age before none.
//   - Readers of one entity share one look. A look that a settle overtakes, or that
//     began on another line, is not shared with those who come after it.
type snapshotCache struct {
	store      Store
	lookups    *lookups
	guard      *breaker
	entries    *otter.Cache[schemas.Entity, *entry]
	missing    missingCache
	limiter    ClientLimiter
	loads      singleflight.Group
	metrics    *metrics
	readCounts *readCounter
	isLimited  func(schemas.Entity) bool // what would be fetched of it now is not for every reader

	started        time.Time    // what follows counts from it, past any step of the clock
	connectedSince atomic.Int64 // since when settles are heard; 0: they are not
	connections    atomic.Int64 // how often the line was made whole

	seed    maphash.Seed
	stripes [256]stripe
}

// stripe orders settles and the ends of looks of its entities.
type stripe struct {
	mu      sync.Mutex
	settles uint64
}

func newSnapshotCache(st Store, limited func(schemas.Entity) bool, most int64, m *metrics, meters ClientLimiter, t *readCounter, log *slog.Logger) *snapshotCache {
	c := &snapshotCache{missing: newMissingCache(), limiter: meters, isLimited: limited, readCounts: t, store: st, guard: newBreaker(m.breaker.Set, log), metrics: m, started: time.Now(), seed: maphash.MakeSeed()}
	c.lookups = &lookups{store: st, guard: c.guard}
	c.entries = otter.Must(&otter.Options[schemas.Entity, *entry]{
		MaximumWeight: uint64(max(1, most)),
		Weigher: func(_ schemas.Entity, e *entry) uint32 {
			return uint32(min(e.weight(), math.MaxUint32)) //nolint:gosec // bounded
		},
	})
	return c
}

// now counts from the start; it is never 0.
func (m *snapshotCache) now() int64 { return int64(time.Since(m.started)) + 1 }

// get returns the stored entry of an entity for a client, nil if nothing is stored.
// older: the store did not answer soon, and the entry is the last one in memory. An
// error is the store's if memory has no entry, or the problem of a client that reads
// too many missing keys.
func (m *snapshotCache) get(ctx context.Context, client string, e schemas.Entity, f source.Facet) (found *entry, older bool, err error) {
	known, _ := m.entries.GetIfPresent(e)
	now := m.now()
	if known != nil && m.isValid(known, now) {
		m.metrics.fromMemory.Inc()
		return known, false, nil
	}
	if known == nil {
		if m.isMissing(e, now) {
			return nil, false, nil
		}
		if err := m.limiter.AllowLookup(client); err != nil {
			return nil, false, err
		}
	}
	found, older, err = m.loadOrFallback(ctx, e, f, known)
	if found == nil && err == nil {
		m.limiter.RecordMisses(client, 1)
	}
	return found, older, err
}

// loadOrFallback looks into the store, and returns what was known if the store does not
// answer soon.
func (m *snapshotCache) loadOrFallback(ctx context.Context, e schemas.Entity, f source.Facet, known *entry) (found *entry, older bool, err error) {
	look := withRecover(func() (any, error) { return m.load(ctx, e, f) })
	if known == nil {
		v, err, _ := m.loads.Do(m.flightKey(e), look)
		found, _ := v.(*entry)
		return found, false, err
	}
	looked := m.loads.DoChan(m.flightKey(e), look)
	patience := time.NewTimer(fallbackTimeout)
	defer patience.Stop()
	select {
	case r := <-looked:
		if r.Err == nil {
			found, _ := r.Val.(*entry)
			return found, false, nil
		}
	case <-patience.C:
	}
	m.metrics.fromFallback.Inc()
	return known, true, nil
}

// flightKey names the look that readers of an entity share. A look that began before
// the line was made whole is not theirs.
func (m *snapshotCache) flightKey(e schemas.Entity) string {
	return strconv.FormatInt(m.connections.Load(), 36) + " " + e.String()
}

// isValid reports whether an entry is known to be what is stored, or was read a
// moment ago.
func (m *snapshotCache) isValid(e *entry, now int64) bool {
	readAt, heard := e.readAt.Load(), m.connectedSince.Load()
	if readAt == 0 {
		return false
	}
	if heard == 0 {
		return now-readAt < int64(disconnectedTTL)
	}
	return readAt >= heard && now-readAt < int64(cacheTTL)
}

// load reads the store. It goes on for all who wait, whoever began it.
func (m *snapshotCache) load(ctx context.Context, e schemas.Entity, f source.Facet) (*entry, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	e = clone(e)
	began, settles := m.now(), m.settleCount(e)
	snapshot, err := m.lookups.get(ctx, e)
	if errors.Is(err, store.ErrNotFound) {
		m.putMissing(e, settles, began)
		return nil, nil //nolint:nilnil // nothing is stored, and that is no error
	}
	if err != nil {
		return nil, err
	}
	m.metrics.fromStore.Inc()
	found := m.newEntry(snapshot, f, began)
	m.put(found, settles)
	return found, nil
}

// newEntry returns a snapshot that a look found, ready to be answered with. What is not for
// every reader no shared cache may keep, whatever the facet says.
func (m *snapshotCache) newEntry(s store.Snapshot, f source.Facet, began int64) *entry {
	f.Public = f.Public && s.Visibility == "" && !m.isLimited(s.Entity)
	return newEntry(s, f, began, m.readCounts.newCount(s.Entity), m.reweigh)
}

func (m *snapshotCache) stripe(e schemas.Entity) *stripe {
	return &m.stripes[maphash.Comparable(m.seed, e)%uint64(len(m.stripes))]
}

// settleCount returns how many settles were heard of an entity's stripe.
func (m *snapshotCache) settleCount(e schemas.Entity) uint64 {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settles
}

// put remembers what a look found, unless a settle was heard since it began, or a
// look that began later has been remembered.
func (m *snapshotCache) put(found *entry, settles uint64) {
	s := m.stripe(found.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settles != settles {
		return
	}
	if known, ok := m.entries.GetEntryQuietly(found.Entity); ok && known.Value.readAt.Load() > found.readAt.Load() {
		return
	}
	m.entries.Set(found.Entity, found)
	m.missing.readAt.Invalidate(found.Entity)
}

// putMissing does the same for a look that began then and found nothing.
func (m *snapshotCache) putMissing(e schemas.Entity, settles uint64, began int64) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settles == settles {
		m.entries.Invalidate(e)
		m.missing.readAt.Set(e, began)
	}
}

// clone lets a remembered entity keep nothing of the request that named it.
func clone(e schemas.Entity) schemas.Entity {
	return schemas.Entity{Source: strings.Clone(e.Source), Facet: strings.Clone(e.Facet), Key: strings.Clone(e.Key)}
}

// reweigh has the cache weigh an entry again that has grown.
func (m *snapshotCache) reweigh(e *entry) {
	m.entries.ComputeIfPresent(e.Entity, func(old *entry) (*entry, otter.ComputeOp) {
		if old == e {
			return e, otter.WriteOp
		}
		return old, otter.CancelOp
	})
}

// invalidate notes that an entity was settled: what is remembered of it may be
// overtaken, and looks under way are.
func (m *snapshotCache) invalidate(e schemas.Entity) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settles++
	m.missing.readAt.Invalidate(e)
	m.loads.Forget(m.flightKey(e))
	if known, ok := m.entries.GetEntryQuietly(e); ok {
		known.Value.readAt.Store(0)
	}
}

// setConnected notes that settles are heard from now on, or no more.
func (m *snapshotCache) setConnected(up bool) {
	if !up {
		m.connectedSince.Store(0)
		return
	}
	m.connections.Add(1) // first: who finds a look of before must not take it for one of now
	m.connectedSince.Store(m.now())
}

// disconnected reports whether settles are not heard.
func (m *snapshotCache) disconnected() bool { return m.connectedSince.Load() == 0 }

// isEmpty reports whether nothing is remembered.
func (m *snapshotCache) isEmpty() bool { return m.entries.EstimatedSize() == 0 }
