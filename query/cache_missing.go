package query

import (
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/freshet/freshet/schemas"
)

const (
	// missingTTL is how long a process caches that nothing is stored for an entity. A settle
	// message of the entity deletes this information at once.
	missingTTL = 5 * time.Second
	// maxMissing is the maximum number of cached missing entities: about 20 MB with keys of 256
	// bytes.
	maxMissing = 50_000
)

// missingCache caches the entities that have no snapshot and, for each of them, the time at which
// the store was read. The invariants of snapshotCache apply to missingCache too. A write needs the
// lock of the entity's stripe (a group of entities, selected by hash).
type missingCache struct {
	readAt *otter.Cache[schemas.Entity, int64]
}

func newMissingCache() missingCache {
	return missingCache{otter.Must(&otter.Options[schemas.Entity, int64]{MaximumSize: maxMissing})}
}

// isMissing reports whether the cache knows that nothing is stored for an entity: a read of the
// store within the last missingTTL found nothing, and no settle message has arrived since.
func (m *snapshotCache) isMissing(e schemas.Entity, now int64) bool {
	readAt, ok := m.missing.readAt.GetIfPresent(e)
	if !ok {
		return false
	}
	since := m.connectedSince.Load()
	if since == 0 {
		return now-readAt < int64(disconnectedTTL)
	}
	return readAt >= since && now-readAt < int64(missingTTL)
}
