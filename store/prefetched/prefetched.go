// Package prefetched defines prefetched entities, with their tiers, due times, histories and claims. Its
// SQL texts are shared by both databases.
package prefetched

import (
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Tier is how often an entity is prefetched. Reads move an unpinned entity between tiers.
type Tier int

// The tiers, from the most to the least frequently fetched.
const (
	Hot Tier = iota
	Warm
	Cold
)

// RegisteredEntity is a prefetched entity. It was registered by a read or by an operator. Times
// have a resolution of one microsecond.
type RegisteredEntity struct {
	Entity schemas.Entity
	// Params are request parameters that differ from the parameters of the facet; nil means none.
	Params map[string]string
	Tier   Tier
	// Pinned is set if an operator chose the tier; reads do not change it.
	Pinned bool
	// Enabled is false if an operator took the entity out of the schedule.
	Enabled bool
	// Due is when the scheduler enqueues the entity next.
	Due time.Time
	// History has the reads and the changes of the entity that the scheduler has observed.
	History History
}

// History is the scheduler's observations of an entity. Older observations have less weight. The
// scheduler's policy calculates the weights; the store only adds new reads.
type History struct {
	// ClaimedAt is when a scheduler last claimed the entity. UpdatedAt is the State.UpdatedAt of the
	// snapshot at that time. If the snapshot has a later State.UpdatedAt now, its content has
	// changed since.
	ClaimedAt, UpdatedAt time.Time
	// Watched is the total time between checks, and Changes is the number of changes that these
	// checks found. In both, older checks have less weight.
	Changes float64
	Watched time.Duration
	// Reads is a weighted number of reads until ReadAt: an older read counts less than a new one.
	Reads  float64
	ReadAt time.Time
}

// Candidate is a due entity with its snapshot's State and its Status. Both may be empty.
type Candidate struct {
	RegisteredEntity
	State  store.State
	Status store.Status
	// Payload is the stored content in the encoding State.Encoding. It is set only for the facets
	// that the caller selects.
	Payload []byte
}

// Decision is the scheduler's decision for a Candidate.
type Decision struct {
	Due     time.Time // next due time; if it is not after now, the entity may be claimed again at once
	Tier    Tier
	History History
	Enqueue bool // true if a refresh must be enqueued now
}

// Claim is a batch of entities that one scheduler has claimed and will enqueue. It is stored until
// all requests are enqueued (FinishClaim). If the scheduler crashes, another scheduler takes over
// the claim after the claim's lease has ended (TakeOverClaim), and no request is lost.
type Claim struct {
	// ID identifies the claim's holder; a takeover assigns a new ID. A claim without requests is not
	// stored, and its ID is empty.
	ID       string
	Source   string
	At       time.Time // time of the claim
	Requests []ClaimedRequest
}

// ClaimedRequest is one update request that the scheduler enqueues for a Claim.
type ClaimedRequest struct {
	Entity schemas.Entity
	Params map[string]string
	// Version is the version of the entity's snapshot, or 0 without a snapshot. The new request must
	// get a higher version.
	Version int64
	// Depth is the depth of the request (schemas.UpdateRequest.Depth).
	Depth int
	// Lane is the lane of the request; empty means LOW.
	Lane schemas.Lane
	// Page is the name of the page of a collection to request; empty means the next page of the
	// collection.
	Page string
}

// EntityReads is a number of reads of an entity. At is the time of the last read.
type EntityReads struct {
	Entity schemas.Entity
	Count  int
	At     time.Time
	// Due and Tier are the initial values of an entity that is not registered yet.
	Due  time.Time
	Tier Tier
}

// DueTime says when an entity is prefetched next.
type DueTime struct {
	Entity schemas.Entity
	At     time.Time
}

// RefreshNowFunc reports whether an entity becomes due at once because of its reads. The values
// "before" and "after" are History.Reads without and with the new reads. In r only Entity, Tier and
// Pinned are set.
type RefreshNowFunc func(r RegisteredEntity, before, after float64) bool

// Filter selects registered entities. An empty field matches all.
type Filter struct {
	Source, Facet string
	Tier          *Tier
	Enabled       *bool
	KeyPrefix     string
}
