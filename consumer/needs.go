package consumer

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Requests is the state of the requests under way.
type Requests interface {
	// Peek says of each request whether it is worth queueing for a permit. stored
	// are the versions of the entities' snapshots, 0 for none.
	Peek(ctx context.Context, requests []schemas.UpdateRequest, stored []int64) ([]schemas.Verdict, error)
	// Begin asks once more, directly before a fetch is sent, and gives the fetch
	// its own number, higher than any that was given for the entity before.
	Begin(ctx context.Context, r schemas.UpdateRequest, stored int64) (schemas.Verdict, int64, error)
	// Settle writes down how requests ended. It may be repeated.
	Settle(ctx context.Context, ends []schemas.End) error
}

// Permits gives out the right to send an upstream call.
type Permits interface {
	// Acquire waits until one call may be sent; it fails only when ctx ends.
	Acquire(ctx context.Context, lane schemas.Lane) (Permit, error)
	// AcquireAgain is Acquire for a caller whose permit lapsed: it goes first.
	AcquireAgain(ctx context.Context, lane schemas.Lane) (Permit, error)
	// Brake stops all calls to the source, everywhere, because one that was sent
	// then was refused: for d, or as long as seems right if the upstream did not
	// say (0).
	Brake(d time.Duration, sent time.Time)
}

// Permit is the right to send one call within a short time.
type Permit interface {
	// Spend reports whether the call may be sent now, and uses the permit up.
	Spend() bool
	// Release hands a permit that was not spent to somebody else.
	Release()
	// Written and Answered are told when the request was written and when the
	// first byte of its answer came.
	Written()
	Answered()
}

// Store keeps snapshots.
type Store interface {
	// States returns the states in the order of the entities; Version is 0 where
	// nothing is stored.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// Write writes all results or, with an error, none; it may be repeated.
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
}
