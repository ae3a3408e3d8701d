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
	// cacheTTL is how long an entry is valid while the settle subscription is connected, and
	// disconnectedTTL while it is not. They do not apply to an entry of an immutable facet. `cacheTTL`
	// limits the age of an entry if a settle message is lost without an error. It also does so if a
	// worker of an older release publishes no settle messages.
	cacheTTL        = 30 * time.Second
	disconnectedTTL = time.Second
	// fallbackTimeout is how long a read waits for the store if the cache has an outdated entry.
	fallbackTimeout = 100 * time.Millisecond
)

// snapshotCache caches the most recently read snapshots of the store.
//
// Invariants:
//   - While the settle subscription is connected, an entry is served as current only if its load
//     began after the last settle message of its entity, and after the subscription was last
//     established.
//   - An outdated entry is kept, and so is a load that a settle message overtook, if nothing newer is
//     cached. It is served as a fallback, with its age, if the store fails or does not respond within
//     fallbackTimeout.
//   - Concurrent readers of an entity share one load. A load that began before a settle message,
//     or before the subscription was last established, is not shared with later readers.
type snapshotCache struct {
	store      Store
	lookups    *lookups
	breaker    *breaker
	entries    *otter.Cache[schemas.Entity, *entry]
	missing    missingCache
	limiter    ClientLimiter
	loads      singleflight.Group
	metrics    *metrics
	readCounts *readCounter
	static     *staticFiles              // static files; nil means that no facet has any
	isLimited  func(schemas.Entity) bool // reports whether the content that a fetch would return now is visible to some clients only

	started        time.Time    // creation of the cache; now() returns the monotonic time since then, so clock steps have no effect
	connectedSince atomic.Int64 // when the subscription was established, in nanoseconds since `started`; 0 means disconnected
	connections    atomic.Int64 // number of times that the subscription was established

	seed    maphash.Seed
	stripes [256]stripe
}

// stripe is the lock of a group of entities, which are grouped by a hash. The lock is held while a
// settle message about one of them is handled, and while a loaded entry of one of them is put into the
// cache. `settles` is the number of settle messages about them.
type stripe struct {
	mu      sync.Mutex
	settles uint64
}

func newSnapshotCache(st Store, limited func(schemas.Entity) bool, maxBytes int64, m *metrics, meters ClientLimiter, t *readCounter, log *slog.Logger) *snapshotCache {
	c := &snapshotCache{missing: newMissingCache(), limiter: meters, isLimited: limited, readCounts: t, store: st, breaker: newBreaker(m.breaker.Set, log), metrics: m, started: time.Now(), seed: maphash.MakeSeed()}
	c.lookups = &lookups{store: st, breaker: c.breaker}
	c.entries = otter.Must(&otter.Options[schemas.Entity, *entry]{
		MaximumWeight: uint64(max(1, maxBytes)),
		Weigher: func(_ schemas.Entity, e *entry) uint32 {
			return uint32(min(e.weight(), math.MaxUint32)) //nolint:gosec // bounded
		},
	})
	return c
}

// now returns the nanoseconds since the cache was created. It never returns 0, because 0 has a
// special meaning in connectedSince and in an entry's readAt.
func (m *snapshotCache) now() int64 { return int64(time.Since(m.started)) + 1 }

// get returns the cached or stored entry of an entity; nil if nothing is stored. `fallback` means that
// the store failed or did not respond in time, and that the entry may be outdated. `err` is the error
// of the store if nothing is cached, or the problem of a client that reads too many missing keys.
//
// A static file that is served first is returned in place of the entry, unless the stored snapshot is
// newer. If the store can't be read, the file is returned with the error.
func (m *snapshotCache) get(ctx context.Context, client string, e schemas.Entity, f source.Facet) (found *entry, fallback bool, err error) {
	file := m.static.get(e, f)
	if file == nil || !f.Static.First() {
		return m.getStored(ctx, client, e, f)
	}
	found, fallback, err = file.orFile(func() (*entry, bool, error) { return m.getStored(ctx, client, e, f) })
	if found == file.entry {
		m.metrics.fromStatic.Inc()
	}
	return found, fallback, err
}

// getStored does the same as get, but never returns a static file.
func (m *snapshotCache) getStored(ctx context.Context, client string, e schemas.Entity, f source.Facet) (found *entry, fallback bool, err error) {
	cached, _ := m.entries.GetIfPresent(e)
	now := m.now()
	if cached != nil && m.isValid(cached, now) {
		m.metrics.fromMemory.Inc()
		return cached, false, nil
	}
	if cached == nil {
		if m.isMissing(e, now) {
			return nil, false, nil
		}
		if err := m.limiter.AllowLookup(client); err != nil {
			return nil, false, err
		}
	}
	found, fallback, err = m.loadOrFallback(ctx, e, f, cached)
	if found == nil && err == nil {
		m.limiter.RecordMisses(client, 1)
	}
	return found, fallback, err
}

// loadOrFallback loads the entity from the store. If an entry is cached and the store fails or
// is slow, it returns that entry as a fallback.
func (m *snapshotCache) loadOrFallback(ctx context.Context, e schemas.Entity, f source.Facet, cached *entry) (found *entry, fallback bool, err error) {
	load := withRecover(func() (any, error) { return m.load(ctx, e, f) })
	if cached == nil {
		v, err, _ := m.loads.Do(m.flightKey(e), load)
		found, _ := v.(*entry)
		return found, false, err
	}
	loaded := m.loads.DoChan(m.flightKey(e), load)
	timeout := time.NewTimer(fallbackTimeout)
	defer timeout.Stop()
	select {
	case r := <-loaded:
		if r.Err == nil {
			found, _ := r.Val.(*entry)
			return found, false, nil
		}
	case <-timeout.C:
	}
	m.metrics.fromFallback.Inc()
	return cached, true, nil
}

// flightKey is the singleflight key of a load. It contains the number of times that the subscription
// was established, so that a load which began before a reconnect is not shared with later readers.
func (m *snapshotCache) flightKey(e schemas.Entity) string {
	return strconv.FormatInt(m.connections.Load(), 36) + " " + e.String()
}

// isValid reports whether an entry may be served as current content.
func (m *snapshotCache) isValid(e *entry, now int64) bool {
	readAt, connectedSince := e.readAt.Load(), m.connectedSince.Load()
	if readAt == 0 {
		return false
	}
	if e.facet.Immutable { // the entry is valid until a settle message arrives, or until a lost subscription is established again
		return connectedSince == 0 || readAt >= connectedSince
	}
	if connectedSince == 0 {
		return now-readAt < int64(disconnectedTTL)
	}
	return readAt >= connectedSince && now-readAt < int64(cacheTTL)
}

// load reads the entity from the store. It completes even if the client that caused the load has
// disconnected, because other readers may share the load.
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

// newEntry returns the cache entry of a snapshot. `began` is the time at which its load began. If
// only some clients may see the entity, the entry is not public, even if the facet is: shared HTTP
// caches must not keep its responses.
func (m *snapshotCache) newEntry(s store.Snapshot, f source.Facet, began int64) *entry {
	f.Public = f.Public && s.Visibility == "" && !m.isLimited(s.Entity)
	return newEntry(s, f, began, m.readCounts.newCount(s.Entity), m.reweigh)
}

func (m *snapshotCache) stripe(e schemas.Entity) *stripe {
	return &m.stripes[maphash.Comparable(m.seed, e)%uint64(len(m.stripes))]
}

// settleCount returns the number of settle messages received for the entity and for the other
// entities of its stripe (a group of entities that share one lock).
func (m *snapshotCache) settleCount(e schemas.Entity) uint64 {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settles
}

// put caches a loaded entry, unless the cached entry comes from a load that began later. If a settle
// message arrived since the load began, the entry is outdated: it is cached only as a fallback, and
// only in place of an earlier version.
func (m *snapshotCache) put(found *entry, settles uint64) {
	s := m.stripe(found.Entity)
	s.mu.Lock()
	defer s.mu.Unlock()
	cached, isCached := m.entries.GetEntryQuietly(found.Entity)
	if s.settles != settles {
		if !isCached || cached.Value.Version < found.Version {
			found.readAt.Store(0)
			m.entries.Set(found.Entity, found)
		}
		return
	}
	if isCached && cached.Value.readAt.Load() > found.readAt.Load() {
		return
	}
	m.entries.Set(found.Entity, found)
	m.missing.readAt.Invalidate(found.Entity)
}

// putMissing caches that nothing is stored for an entity. `began` is the time at which the load
// began. Like put, it does nothing if a settle message arrived since then.
func (m *snapshotCache) putMissing(e schemas.Entity, settles uint64, began int64) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settles == settles {
		m.entries.Invalidate(e)
		m.missing.readAt.Set(e, began)
	}
}

// clone copies an entity. The strings of the original are parts of the HTTP request, so an original
// in the cache would keep the request in memory.
func clone(e schemas.Entity) schemas.Entity {
	return schemas.Entity{Source: strings.Clone(e.Source), Facet: strings.Clone(e.Facet), Key: strings.Clone(e.Key)}
}

// reweigh updates an entry's weight (its memory in bytes) after an encoded body was added to the
// entry.
func (m *snapshotCache) reweigh(e *entry) {
	m.entries.ComputeIfPresent(e.Entity, func(old *entry) (*entry, otter.ComputeOp) {
		if old == e {
			return e, otter.WriteOp
		}
		return old, otter.CancelOp
	})
}

// invalidate handles a settle message: the cached entry becomes outdated, and loads in flight are
// not shared with later readers.
func (m *snapshotCache) invalidate(e schemas.Entity) {
	s := m.stripe(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settles++
	m.static.settle(e)
	m.missing.readAt.Invalidate(e)
	m.loads.Forget(m.flightKey(e))
	if cached, ok := m.entries.GetEntryQuietly(e); ok {
		cached.Value.readAt.Store(0)
	}
}

// setConnected records that the settle subscription was established or lost.
func (m *snapshotCache) setConnected(connected bool) {
	if !connected {
		m.connectedSince.Store(0)
		return
	}
	// The key of a shared load contains `connections`. It must change before connectedSince, so
	// that a reader that finds the subscription connected again does not share a load that began
	// before the reconnect.
	m.connections.Add(1)
	if m.static != nil {
		m.static.unchecked.Store(true)
	}
	m.connectedSince.Store(m.now())
}

// disconnected reports whether the settle subscription is lost.
func (m *snapshotCache) disconnected() bool { return m.connectedSince.Load() == 0 }

// isEmpty reports whether the cache has no entries.
func (m *snapshotCache) isEmpty() bool { return m.entries.EstimatedSize() == 0 }
