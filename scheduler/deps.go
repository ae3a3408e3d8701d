package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store holds the prefetched entities, their claims and the price. Its implementations are in
// package store.
type Store interface {
	// ClaimEntities claims at most limit due entities of the source in one transaction. It calls
	// decide for each, and stores the result. Concurrent calls never claim the same entity. The
	// requests that decide returned are in the Claim until the claim is finished. Payloads are read
	// only for facets for which content returns true.
	ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration,
		content func(facet string) bool, decide func(store.Candidate) store.Decision) (store.Claim, error)
	// FinishClaim deletes a claim after all of its requests were enqueued.
	FinishClaim(ctx context.Context, id string) error
	// RenewClaim extends the lease of a claim. It returns held = false if another scheduler has
	// taken the claim over.
	RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error)
	// TakeOverClaim takes over a claim whose lease has expired, and sets a new lease.
	TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (c store.Claim, found bool, err error)
	// NextEntityTime returns the earliest due time; zero if no entity is scheduled.
	NextEntityTime(ctx context.Context, source string) (time.Time, error)
	// EntitiesDueAfter returns at most limit entities that are due after a time, in the order of
	// their due times. Payloads are read as in ClaimEntities.
	EntitiesDueAfter(ctx context.Context, source string, after time.Time, limit int, content func(facet string) bool) ([]store.Candidate, error)
	// BringForward sets earlier due times. It ignores a time that is later than the stored one.
	BringForward(ctx context.Context, all []store.DueTime) error
	// Price returns the price that the schedulers of the source share, and when it was set; zero if
	// it never was. SetPrice does nothing if the price was set less than the interval every ago.
	Price(ctx context.Context, source string) (price float64, at time.Time, err error)
	SetPrice(ctx context.Context, source string, price float64, at time.Time, every time.Duration) (set bool, err error)
	// States returns the states in the order of the entities.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
}

// Enqueuer publishes refresh requests.
type Enqueuer interface {
	// Prefetch enqueues requests in the LOW lane. It returns the requests that must be enqueued
	// again because their delivery is not certain.
	Prefetch(ctx context.Context, asks []store.ClaimedRequest) (left []store.ClaimedRequest)
}

// CapacityFunc returns how many calls LOW may make now, and how much work waits in its topic.
type CapacityFunc func(ctx context.Context, now time.Time) (Capacity, error)

// Poller calls work when an entity is due, and latest after the time latest (package poll).
type Poller interface {
	Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
}
