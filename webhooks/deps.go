package webhooks

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Deps are the dependencies of a Receiver.
type Deps struct {
	Store    Store
	Walks    Walks
	Enqueuer Enqueuer
	// Wake wakes the outbox relays of a source at the time at. This time may be in the future.
	Wake    func(ctx context.Context, source string, at time.Time)
	Now     func() time.Time
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Store has the methods of the database that a Receiver calls.
type Store interface {
	// States returns the states of the entities in the given order. Version is 0 for an entity without a
	// stored state.
	States(ctx context.Context, of []schemas.Entity) ([]store.State, error)
	// EntityParams returns the registered params of each entity, in the given order. The result of an
	// entity that is not registered is nil.
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
	// WriteOutbox stores only the outbox events of the writes. If an event is a trigger with a quiet
	// time, it replaces the waiting trigger of the same entity.
	WriteOutbox(ctx context.Context, writes []store.Write) error
}

// Walks changes the walks of collections.
type Walks interface {
	// WalkAgain makes sure that another walk follows the open walk of each collection. Other entities
	// are ignored.
	WalkAgain(ctx context.Context, of []schemas.Entity) error
}

// Enqueuer enqueues strict update requests with the reason TRIGGER.
type Enqueuer interface {
	// EnqueueAndWait enqueues the requests and returns their results, in the order of the requests. It
	// returns as soon as Kafka has acknowledged, or freshet has refused, each request. If ctx ends
	// first, the remaining results are Unavailable.
	EnqueueAndWait(ctx context.Context, all []Request) []Result
}

// Request asks for the refresh of one entity that a delivery names.
type Request struct {
	Entity        schemas.Entity
	Lane          schemas.Lane
	Floor         int64 // version of the stored snapshot; 0 means none
	CorrelationID string
}

// Outcome says whether a Request was enqueued.
type Outcome int

// The values of Outcome. Unavailable: Redis or Kafka did not accept the request. Held: the entity has a
// hold, because it failed, is suspended or was not found. Queued: Kafka has acknowledged a record that
// covers the request.
const (
	Unavailable Outcome = iota
	Held
	Queued
)

// Result is the result of one Request. With the outcome Queued, Number is the number of the record
// that covers the Request; 0 means that a retry covers the Request, and the retry has no number yet.
type Result struct {
	Outcome Outcome
	Number  int64
}

// Keys checks the keys of a source, and returns their canonical spelling.
type Keys interface {
	CheckKey(facet, key string) error
	// Fold returns the canonical spelling of a key of a facet.
	Fold(facet, key string) string
}
