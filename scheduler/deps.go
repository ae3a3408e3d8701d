package scheduler

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Store holds the prefetched entities, their claims and the price. Its implementations are in
// package store.
type Store interface {
	Claims
	DueTimes
	Prices
	// States returns the states of these entities, in the same order.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
}

// Claims gives due entities to one scheduler at a time.
type Claims interface {
	// ClaimEntities claims at most `limit` due entities of the source in one transaction. It calls the
	// function `decide` with the state and the reads of each entity (prefetched.Candidate), and stores the
	// decision. Two concurrent calls never claim the same entity. The store keeps the requests of a
	// claim until FinishClaim. A Candidate contains the stored payload only if "content" returns true
	// for its facet.
	ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration,
		content func(facet string) bool, decide func(prefetched.Candidate) prefetched.Decision) (prefetched.Claim, error)
	// FinishClaim deletes a claim after all of its requests were enqueued.
	FinishClaim(ctx context.Context, id string) error
	// RenewClaim extends the lease of a claim. `held` is false if another scheduler has taken over the
	// claim.
	RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error)
	// TakeOverClaim takes over one claim whose lease has expired, and gives it a new lease.
	TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (c prefetched.Claim, found bool, err error)
}

// DueTimes has the due times of entities.
type DueTimes interface {
	// NextEntityTime returns the earliest due time of the source; zero if the source has no due
	// times.
	NextEntityTime(ctx context.Context, source string) (time.Time, error)
	// EntitiesDueAfter returns at most `limit` entities that are due after a time, in the order of
	// their due times. The candidates contain the stored payload only for facets for which `content`
	// returns true.
	EntitiesDueAfter(ctx context.Context, source string, after time.Time, limit int, content func(facet string) bool) ([]prefetched.Candidate, error)
	// BringForward stores earlier due times for entities. If the stored due time of an entity is even
	// earlier, it stays unchanged.
	BringForward(ctx context.Context, all []prefetched.DueTime) error
}

// Prices keeps the price that all schedulers of a source use.
type Prices interface {
	// Price returns the price that the schedulers of the source share, and the time at which it was
	// set; zero if no price was set yet. SetPrice stores a price, but does nothing if the stored
	// price is younger than "every".
	Price(ctx context.Context, source string) (price float64, at time.Time, err error)
	SetPrice(ctx context.Context, source string, price float64, at time.Time, every time.Duration) (set bool, err error)
}

// Enqueuer publishes update requests in Kafka.
type Enqueuer interface {
	// Prefetch enqueues requests in the LOW lane. It returns the requests that the caller must
	// enqueue again, because Kafka has not acknowledged them.
	Prefetch(ctx context.Context, requests []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest)
}

// CapacityFunc returns the rate at which the LOW lane may make calls now, and the work that waits
// in the LOW topic.
type CapacityFunc func(ctx context.Context, now time.Time) (Capacity, error)

// Poller calls work repeatedly: when the next entity is due, and at the latest after the duration
// "latest" (package poll).
type Poller interface {
	Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
}
