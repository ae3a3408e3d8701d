package outbox

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store keeps what is to follow from changes.
type Store interface {
	// ClaimOutboxEvents claims up to most effects of the source, the earliest first, by having
	// them due again after the lease. No other call gets the same before that.
	ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, most int) ([]store.OutboxEvent, error)
	// NextOutboxTime returns when the next may be claimed; zero if there is none.
	NextOutboxTime(ctx context.Context, source string) (time.Time, error)
	// MarkChangesPublished notes that the changes of effects were told: of those that stay, what is
	// left are their triggers.
	MarkChangesPublished(ctx context.Context, ids []int64) error
	// DeleteOutboxEvents ends effects.
	DeleteOutboxEvents(ctx context.Context, ids []int64) error
	// States returns the states in the order of the entities.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
}

// Enqueuer is where requests are asked for.
type Enqueuer interface {
	// Trigger asks for each in the LOW lane with a fetch that begins after it, and
	// returns those that must be asked for once more: whatever is neither certain to be
	// worked on nor held.
	Trigger(ctx context.Context, asks []store.ClaimedRequest) (left []store.ClaimedRequest)
}
