package store

import (
	"time"

	"github.com/freshet/freshet/schemas"
)

// Freshness describes how current the stored state of an entity is.
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

// Lifetimes are the times of a facet that decide the freshness of its entities.
type Lifetimes struct {
	// FreshFor is how long a snapshot is fresh after a check. NotFoundFor is how long a stored
	// not-found result is valid after a check. KeepFor is how long content is served after its fetch;
	// 0 means no limit.
	FreshFor, NotFoundFor, KeepFor time.Duration
	// AliasNotFoundFor is how long an entity counts as not found after the entity of its alias was not
	// found.
	AliasNotFoundFor time.Duration
}

// FreshnessOf returns the freshness of a state. It also returns the reason of the update request that
// a read of this state makes; empty means that the read makes no request. The zero State means that
// nothing is stored.
func FreshnessOf(s *State, l Lifetimes, now time.Time) (Freshness, schemas.Reason) {
	age, notFoundFor := now.Sub(s.CheckedAt), l.NotFoundFor
	if s.AliasNotFound {
		notFoundFor = l.AliasNotFoundFor
	}
	switch {
	case s.NotFound && age < notFoundFor:
		return NotFound, ""
	case s.NotFound:
		return NotFound, schemas.Stale
	case !s.HasContent():
		return Updating, schemas.CacheMiss
	case l.KeepFor > 0 && now.Sub(s.FetchedAt) >= l.KeepFor:
		return Updating, schemas.CacheMiss // older than KeepFor: must not be served
	case age < l.FreshFor:
		return Fresh, ""
	}
	return Stale, schemas.Stale
}
