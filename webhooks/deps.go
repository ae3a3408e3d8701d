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
	// Wake wakes the outbox relays of a source at the time `at`, which may be in the future.
	Wake    func(ctx context.Context, source string, at time.Time)
	Now     func() time.Time
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Store is the database.
type Store interface {
	// States returns the states of the entities in the given order. Version is 0 for an entity without a
	// stored state.
	States(ctx context.Context, of []schemas.Entity) ([]store.State, error)
	// EntityParams returns the params that the entities are registered with, in the given order; nil for an
	// entity that is not registered.
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
	// WriteOutbox stores the outbox events of writes, without the writes themselves. A trigger with a quiet
	// time replaces the waiting trigger of the same entity.
	WriteOutbox(ctx context.Context, writes []store.Write) error
}

// Walks are the walks of collections.
type Walks interface {
	// WalkAgain lets the open walk of each entity that is a collection be followed by another one.
	WalkAgain(ctx context.Context, of []schemas.Entity) error
}

// Enqueuer enqueues strict update requests with the reason TRIGGER.
type Enqueuer interface {
	// EnqueueAndWait returns a result for each request, in the order of the requests. It returns when each
	// request was acknowledged by Kafka or refused. If ctx ends first, the remaining results are Unavailable.
	EnqueueAndWait(ctx context.Context, all []Request) []Result
}

// Request is a request to refresh one entity.
type Request struct {
	Entity        schemas.Entity
	Lane          schemas.Lane
	Floor         int64 // version of the stored snapshot; 0: none
	CorrelationID string
}

// Outcome says whether a Request was enqueued.
type Outcome int

// The outcomes. Unavailable: Redis or Kafka did not accept the request. Held: the entity failed, is
// suspended or not found, and is not requested until its hold ends. Queued: Kafka has acknowledged a record
// that covers the request.
const (
	Unavailable Outcome = iota
	Held
	Queued
)

// Result is the response of an Enqueuer to one Request. Number is the number of the record that covers the
// Request. Queued with the number 0: a retry, which has no number yet, covers the Request.
type Result struct {
	Outcome Outcome
	Number  int64
}

// Keys checks and folds the keys of a source.
type Keys interface {
	CheckKey(facet, key string) error
	// Fold returns the canonical spelling of a key of a facet.
	Fold(facet, key string) string
}
