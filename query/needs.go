package query

import (
	"context"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Store is where snapshots are read.
type Store interface {
	// Get returns an entity's snapshot, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
}

// Source knows an upstream's facets and which keys they take.
type Source interface {
	Facet(name string) (source.Facet, bool)
	CheckKey(facet, key string) error
}

// Wish asks for a refresh of one entity.
type Wish struct {
	Entity        schemas.Entity
	Reason        schemas.Reason
	Floor         int64 // version of the snapshot that was read
	Cooldown      time.Duration
	CorrelationID string
	TraceParent   string
}

// Answer is what became of a Wish.
type Answer struct {
	// Queued: a record that covers the wish is in the producer's buffer or in
	// Kafka.
	Queued bool
	// Pending: somebody else's record is in the air; ask again for certainty.
	Pending bool
	// Reason says why it is not queued; Until is when asking again may help, if
	// that is known.
	Reason string
	Until  time.Time
}

// The reasons for which a wish is not queued, besides those of holds (HELD_…).
const (
	reasonPending  = "PENDING"
	ReasonCooldown = "COOLDOWN"
	ReasonBusy     = "BUSY"        // Kafka takes records more slowly than they come
	ReasonDown     = "UNAVAILABLE" // Redis or Kafka is away
	reasonSlow     = "SLOW"        // it could not be said in time; it may be queued yet
)

// Requester queues refreshes in the HIGH lane. It does not wait for Kafka, and
// for nothing else for long.
type Requester interface {
	Request(ctx context.Context, w Wish) Answer
}

// Waits tells how long a request will wait in a lane, and whether that is known,
// without asking anybody.
type Waits interface {
	Wait(source string, lane schemas.Lane) (time.Duration, bool)
}
