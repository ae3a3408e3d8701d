package query

import (
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/freshet/freshet/schemas"
)

const (
	// missingTTL is how long a process takes the database's word that nothing is
	// stored of an entity. A settle of the entity ends it at once.
	missingTTL = 5 * time.Second
	// maxMissing bounds the entities of which that is remembered: with keys of 256
	// bytes about 20 MB.
	maxMissing = 50_000
)

// missingCache remembers of which entities nothing is stored, and when that was read. The
// rules of memory apply: it is written under the lock of the entity's stripe.
type missingCache struct {
	readAt *otter.Cache[schemas.Entity, int64]
}

func newMissingCache() missingCache {
	return missingCache{otter.Must(&otter.Options[schemas.Entity, int64]{MaximumSize: maxMissing})}
}

// isMissing reports whether it is known that nothing is stored of an entity: the database
// said so a moment ago, and no settle has been received since.
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
