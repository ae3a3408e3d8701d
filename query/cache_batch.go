package query

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// cacheResult is what get finds of one of many.
type cacheResult struct {
	*entry   // nil: nothing is stored, or there was an error
	fallback bool
	err      error
}

// getAll is get for many entities, which are all of one facet: one look for those
// that are not believed.
func (m *snapshotCache) getAll(ctx context.Context, client string, of []schemas.Entity, f source.Facet) []cacheResult {
	refused := m.limiter.AllowLookup(client)
	found := make([]cacheResult, len(of))
	var missing []int
	patience := fallbackTimeout
	now := m.now()
	for i, e := range of {
		found[i].entry, _ = m.entries.GetIfPresent(e)
		if found[i].entry != nil && m.isValid(found[i].entry, now) {
			m.metrics.fromMemory.Inc()
			continue
		}
		if found[i].entry == nil {
			if m.isMissing(e, now) {
				continue
			}
			if found[i].err = refused; refused != nil {
				continue
			}
			patience = storeTimeout
		}
		missing = append(missing, i)
	}
	if len(missing) == 0 {
		return found
	}
	asked := make([]schemas.Entity, len(missing))
	for j, i := range missing {
		asked[j] = clone(of[i])
	}
	looked := make(chan []*entry, 1)
	var failed error
	go func() {
		defer close(looked)
		all, err := withRecover(func() (any, error) { return m.loadAll(ctx, asked, f) })()
		if failed = err; err == nil {
			looked <- all.([]*entry) //nolint:forcetypeassert // what lookAll returns
		}
	}()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	err := context.DeadlineExceeded
	select {
	case all, ok := <-looked:
		if ok {
			nothing := 0
			for j, i := range missing {
				if found[i].entry = all[j]; all[j] == nil {
					nothing++
				}
			}
			m.limiter.RecordMisses(client, nothing)
			return found
		}
		err = failed
	case <-limit.C:
	}
	for _, i := range missing {
		if found[i].fallback = found[i].entry != nil; found[i].fallback {
			m.metrics.fromFallback.Inc()
		} else {
			found[i].err = err
		}
	}
	return found
}

// loadAll is look for many.
func (m *snapshotCache) loadAll(ctx context.Context, of []schemas.Entity, f source.Facet) ([]*entry, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	began := m.now()
	settles := make([]uint64, len(of))
	for i, e := range of {
		settles[i] = m.settleCount(e)
	}
	snapshots, err := withBreaker(m.guard, func() ([]store.Snapshot, error) { return m.store.GetAll(ctx, of) })
	if err != nil {
		return nil, err
	}
	found := make([]*entry, len(of))
	for i, s := range snapshots {
		if s.Version == 0 {
			m.putMissing(of[i], settles[i], began)
			continue
		}
		m.metrics.fromStore.Inc()
		found[i] = m.newEntry(s, f, began)
		m.put(found[i], settles[i])
	}
	return found, nil
}
