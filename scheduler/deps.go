package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store keeps the entities that are prefetched.
type Store interface {
	// ClaimEntities claims up to most entities of the source that are due, and has
	// decide say what becomes of each, in one transaction. No other call claims the
	// same. Those that decide asks for lie in the Claim until it is finished. Payloads
	// are read of the facets that content reports.
	ClaimEntities(ctx context.Context, source string, now time.Time, most int, lease time.Duration,
		content func(facet string) bool, decide func(store.Candidate) store.Decision) (store.Claim, error)
	// FinishClaim ends a claim all of which was asked for.
	FinishClaim(ctx context.Context, id string) error
	// RenewClaim holds a claim until then; not held: somebody else has taken it over.
	RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error)
	// TakeOverClaim takes over a claim whose lease has passed, for another lease.
	TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (c store.Claim, found bool, err error)
	// NextEntityTime returns when the next entity is due; zero if there is none.
	NextEntityTime(ctx context.Context, source string) (time.Time, error)
	// EntitiesDueAfter returns up to most entities of the source that are due later than a time,
	// the earliest first, with payloads as ClaimEntities has them.
	EntitiesDueAfter(ctx context.Context, source string, after time.Time, most int, content func(facet string) bool) ([]store.Candidate, error)
	// BringForward makes entities due earlier, and none later.
	BringForward(ctx context.Context, all []store.DueTime) error
	// Price returns the price that the source's schedulers share, and when it was set; zero
	// if it never was. SetPrice sets it unless that was done less than every before.
	Price(ctx context.Context, source string) (price float64, at time.Time, err error)
	SetPrice(ctx context.Context, source string, price float64, at time.Time, every time.Duration) (set bool, err error)
	// States returns the states in the order of the entities.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
}

// Enqueuer is where requests are asked for.
type Enqueuer interface {
	// Prefetch asks for each in the LOW lane, and returns those that must be asked for
	// once more: whatever is not certain to be worked on.
	Prefetch(ctx context.Context, asks []store.ClaimedRequest) (left []store.ClaimedRequest)
}

// CapacityFunc says how it stands with the source: what LOW may call, and what waits for it.
type CapacityFunc func(ctx context.Context, now time.Time) (Capacity, error)

// Poller calls the scheduler when something is due (poll.Poller).
type Poller interface {
	Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
}
