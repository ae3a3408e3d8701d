package query

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
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

// freshnessOf says how fresh what is stored is, nil for nothing, and for which reason a
// refresh is wanted; empty: none is.
func freshnessOf(e *entry, f source.Facet, now time.Time) (Freshness, schemas.Reason) {
	if e == nil {
		return Updating, schemas.CacheMiss
	}
	age := now.Sub(e.CheckedAt)
	switch {
	case e.Absent && age < f.NotFoundFor:
		return NotFound, ""
	case e.Absent:
		return NotFound, schemas.Stale
	case !e.HasContent():
		return Updating, schemas.CacheMiss
	case f.KeepFor > 0 && now.Sub(e.FetchedAt) >= f.KeepFor:
		return Updating, schemas.CacheMiss // kept too long to be served
	case age < f.FreshFor:
		return Fresh, ""
	}
	return Stale, schemas.Stale
}
