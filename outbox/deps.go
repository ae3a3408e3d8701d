package outbox

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// Store has the methods of the database that a Relay calls, in addition to Events.
type Store interface {
	Events
	// WriteOutbox stores only the outbox events of the writes. If an event is a trigger with a quiet
	// time, it replaces the waiting trigger of the same entity.
	WriteOutbox(ctx context.Context, writes []store.Write) error
	// States returns the stored state of each entity, in the order of the entities.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
}

// Events claims and deletes the stored outbox events.
type Events interface {
	// ClaimOutboxEvents claims due events of the source, the earliest first and no more than
	// `most`. No other call returns them before the lease ends.
	ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, most int) ([]store.OutboxEvent, error)
	// NextOutboxTime returns when the next event may be claimed, or zero if there is none.
	NextOutboxTime(ctx context.Context, source string) (time.Time, error)
	// MarkChangesPublished records that the changes of these events are published, so that only the
	// events' triggers are left to deliver.
	MarkChangesPublished(ctx context.Context, ids []int64) error
	// DeleteOutboxEvents deletes delivered events. It keeps an event that requests the next page of a
	// collection, and only moves its due time to a later time. The transaction that stores the page
	// deletes that event.
	DeleteOutboxEvents(ctx context.Context, ids []int64) error
}

// Enqueuer publishes update requests.
type Enqueuer interface {
	// Trigger enqueues each request in the LOW lane as a strict request: a fetch must begin after
	// the request. A request with a Depth is relaxed: it comes from a link, and any fetch satisfies it. It returns the requests that must be enqueued again. A request that a hold
	// rejects is not returned.
	Trigger(ctx context.Context, requests []prefetched.ClaimedRequest) (left []prefetched.ClaimedRequest)
}
