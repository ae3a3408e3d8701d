package store

import (
	"time"

	"github.com/freshet/freshet/schemas"
)

// Tier says how often an entity is prefetched. Readers move it.
type Tier int

// The tiers, from the one that is fetched most often.
const (
	Hot Tier = iota
	Warm
	Cold
)

// Registered is an entity that is prefetched: one that has been read, or that somebody
// has registered. Times have the resolution of a microsecond.
type Registered struct {
	Entity schemas.Entity
	// Params are those of its requests where they differ from the facet's; nil: none.
	Params map[string]string
	Tier   Tier
	// Pinned: a person chose the tier, and reads don't change it.
	Pinned bool
	// Enabled: a person may take an entity out of the schedule, and put it back.
	Enabled bool
	// Due is when it is asked for next, by itself.
	Due time.Time
	// History is what has been seen of it.
	History History
}

// History is what has been seen of an entity by who schedules it. Past times count
// less and less, as the scheduler's policy has it: the store only keeps it.
type History struct {
	// ClaimedAt is when it was due last, and UpdatedAt its snapshot's then: a later
	// one has changed since.
	ClaimedAt, UpdatedAt time.Time
	// Changes were seen within the time Watched, that has passed between checks.
	Changes float64
	Watched time.Duration
	// Reads were made until ReadAt.
	Reads  float64
	ReadAt time.Time
}

// Candidate is an entity that is due, and what is known of it. State is that of its
// snapshot, and Status that of its failures; each may be empty.
type Candidate struct {
	Registered
	State  State
	Status Status
	// Payload is what is stored, encoded as State.Encoding says, where it was asked for.
	Payload []byte
}

// Move is what becomes of a Candidate.
type Move struct {
	Due     time.Time // when it is due again; not later than now: it may be claimed again at once
	Tier    Tier
	History History
	Ask     bool // for a refresh, now
}

// Claim is a batch of entities that one scheduler has claimed to ask for. It is kept
// until all have been asked for (FinishClaim): if the scheduler dies, another takes it
// over after its lease (AbandonedClaim), and nothing is forgotten.
type Claim struct {
	// ID is the holder's: who takes it over gets another. Empty where nothing is asked
	// for, and so nothing is kept.
	ID     string
	Source string
	At     time.Time // when they were claimed
	Asks   []Request
}

// Request is one entity of a Claim.
type Request struct {
	Entity schemas.Entity
	Params map[string]string
	// Version is that of its snapshot, 0 for none: the floor of its request.
	Version int64
}

// Reads are how often an entity was read, until a time.
type Reads struct {
	Entity schemas.Entity
	Count  int
	At     time.Time
	// Due is when it is due if it is not registered yet, and Tier in which tier it
	// then is.
	Due  time.Time
	Tier Tier
}

// DueTime is when an entity is due.
type DueTime struct {
	Entity schemas.Entity
	At     time.Time
}

// Risen reports whether the reads of a registered entity are a reason to look at it at once,
// and not when it is due: before so many, and so many now. Of r the entity, its tier and
// Pinned are set.
type Risen func(r Registered, before, after float64) bool

// EntityFilter chooses registered entities. Empty fields choose all.
type EntityFilter struct {
	Source, Facet string
	Tier          *Tier
	Enabled       *bool
	KeyPrefix     string
}
