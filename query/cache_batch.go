package query

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// cacheResult is the result of getAll for one entity. It has the values that get would return.
type cacheResult struct {
	*entry   // nil means that nothing is stored, or err is set
	fallback bool
	err      error
}

// getAll returns the cached or stored entries of several entities of one facet, like get for one
// entity. It reads the store at most once.
func (m *snapshotCache) getAll(ctx context.Context, client string, entities []schemas.Entity, f source.Facet) []cacheResult {
	limitErr := m.limiter.AllowLookup(client)
	found := make([]cacheResult, len(entities))
	var indexes []int
	timeout := fallbackTimeout
	now := m.now()
	for i, e := range entities {
		found[i].entry, _ = m.entries.GetIfPresent(e)
		if found[i].entry != nil && m.isValid(found[i].entry, now) {
			m.metrics.fromMemory.Inc()
			continue
		}
		if found[i].entry == nil {
			if m.isMissing(e, now) {
				continue
			}
			if found[i].err = limitErr; limitErr != nil {
				continue
			}
			timeout = storeTimeout
		}
		indexes = append(indexes, i)
	}
	if len(indexes) == 0 {
		return found
	}
	toLoad := make([]schemas.Entity, len(indexes))
	for j, i := range indexes {
		toLoad[j] = clone(entities[i])
	}
	loaded := make(chan []*entry, 1)
	var failed error
	go func() {
		defer close(loaded)
		all, err := withRecover(func() (any, error) { return m.loadAll(ctx, toLoad, f) })()
		if failed = err; err == nil {
			loaded <- all.([]*entry) //nolint:forcetypeassert // loadAll returns this type
		}
	}()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	err := context.DeadlineExceeded
	select {
	case all, ok := <-loaded:
		if ok {
			notFound := 0
			for j, i := range indexes {
				if found[i].entry = all[j]; all[j] == nil {
					notFound++
				}
			}
			m.limiter.RecordMisses(client, notFound)
			return found
		}
		err = failed
	case <-limit.C:
	}
	for _, i := range indexes {
		if found[i].fallback = found[i].entry != nil; found[i].fallback {
			m.metrics.fromFallback.Inc()
		} else {
			found[i].err = err
		}
	}
	return found
}

// loadAll reads several entities with one read of the store, and caches the results.
func (m *snapshotCache) loadAll(ctx context.Context, entities []schemas.Entity, f source.Facet) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	began := m.now()
	settles := make([]uint64, len(entities))
	for i, e := range entities {
		settles[i] = m.settleCount(e)
	}
	snapshots, err := withBreaker(m.breaker, func() ([]store.Snapshot, error) { return m.store.GetAll(ctx, entities) })
	if err != nil {
		return nil, err
	}
	found := make([]*entry, len(entities))
	for i, s := range snapshots {
		if s.Version == 0 {
			m.putMissing(entities[i], settles[i], began)
			continue
		}
		m.metrics.fromStore.Inc()
		found[i] = m.newEntry(s, f, began)
		m.put(found[i], settles[i])
	}
	return found, nil
}
