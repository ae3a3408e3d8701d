package query

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Freshness is what a reader is told about a snapshot.
type Freshness string

// The four states. UPDATING: nothing is stored that may be served; the first
// copy is on its way, or nobody can fetch it now. NOT_FOUND: the upstream said
// that there is no such entity.
const (
	Fresh    Freshness = "FRESH"
	Stale    Freshness = "STALE"
	Updating Freshness = "UPDATING"
	NotFound Freshness = "NOT_FOUND"
)

// judge says how fresh a snapshot is and for which reason a refresh is wanted;
// empty: none is. found is false if nothing is stored.
func judge(s store.Snapshot, found bool, f source.Facet, now time.Time) (Freshness, schemas.Reason) {
	age := now.Sub(s.CheckedAt)
	switch {
	case !found:
		return Updating, schemas.CacheMiss
	case s.Absent && age < f.AbsentFor:
		return NotFound, ""
	case s.Absent:
		return NotFound, schemas.Stale
	case f.KeepFor > 0 && now.Sub(s.FetchedAt) >= f.KeepFor:
		return Updating, schemas.CacheMiss // kept too long to be served
	case age < f.FreshFor:
		return Fresh, ""
	}
	return Stale, schemas.Stale
}
