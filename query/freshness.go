package query

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// Freshness describes how current a snapshot is.
type Freshness string

// The values of Freshness. FRESH: checked within the facet's FreshFor. STALE: older; a refresh
// is due. UPDATING: nothing is stored that may be served. NOT_FOUND: the upstream has no such
// entity.
const (
	Fresh    Freshness = "FRESH"
	Stale    Freshness = "STALE"
	Updating Freshness = "UPDATING"
	NotFound Freshness = "NOT_FOUND"
)

// freshnessOf returns the freshness of an entry (nil: nothing is stored), and the reason of the
// update request that it needs; empty: none.
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
		return Updating, schemas.CacheMiss // older than KeepFor: must not be served
	case age < f.FreshFor:
		return Fresh, ""
	}
	return Stale, schemas.Stale
}
