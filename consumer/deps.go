package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
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
	// ReleaseOutstanding ends the counts of clients' requests that have ended. It may be repeated.
	ReleaseOutstanding(ctx context.Context, ended []schemas.Outstanding) error
}

// Permits gives out the right to send an upstream call.
type Permits interface {
	// Acquire waits until that call may be sent; it fails only when ctx ends.
	Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
	// AcquireRetry is Acquire for a record whose last call failed: those wait longer while
	// others wait too, most of all to probe.
	AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
	// Reacquire is Acquire for a caller whose permit lapsed: it goes first.
	Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
	// BackOff stops all calls to the source, everywhere, because one that was sent
	// then was refused: for d, or as long as seems right if the upstream did not
	// say (0).
	BackOff(d time.Duration, sent time.Time)
	// OpenBreaker stops all calls to the source, everywhere, because one that was sent
	// then showed that the upstream is sick, but for one call after first, and then
	// after pauses that double up to most, until Lift. A call sent before the stop
	// changes nothing.
	OpenBreaker(first, most time.Duration, sent time.Time)
	// CloseBreaker ends what Probe began before then, because a call sent then was answered
	// well. It is told of every such call.
	CloseBreaker(sent time.Time)
	// BreakerOpenSince reports whether such a stop, whichever process began it, is or was known
	// to be in force at any time since then.
	BreakerOpenSince(since time.Time) bool
	// UntilBreakerOpens returns a context that ends when such a stop is known, and has ended while
	// one is. Closed returns a channel that is closed while none is known, or when it ends.
	UntilBreakerOpens() context.Context
	BreakerClosed() <-chan struct{}
	// HighPerSecond returns how many calls HIGH may make in a second by the quota's windows,
	// infinite where none bounds it, and LowReserve how many are kept for LOW, 0 for none.
	HighPerSecond() float64
	LowReserve() float64
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
	// Credential returns the name of the credential that the call is to be made with,
	// one of its Call's.
	Credential() string
	// IsProbe reports whether the call probes something that Halt has stopped.
	IsProbe() bool
	// ReportEnd is told how the call ended, once for each permit that was spent, as soon as
	// its answer is there.
	ReportEnd(e source.CallResult)
	// OpenBreaker stops the calls that have the call's what in common ("endpoint", "resource"
	// or "credential"), everywhere, because it was refused: for first, or as long as
	// seems right if the upstream did not say (0), and longer with each refusal that
	// follows, up to most.
	OpenScopeBreaker(what string, first, most time.Duration)
	// ReportSuccess ends such stops, because the call was answered well. It is told of every
	// such call.
	ReportSuccess()
}

// Store keeps snapshots, and what is wrong with entities.
type Store interface {
	// States returns the states in the order of the entities; Version is 0 where
	// nothing is stored.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// EntityParams returns the params that the entities are registered with, in their
	// order; nil where there are none.
	EntityParams(ctx context.Context, entities []schemas.Entity) ([]map[string]string, error)
	// Write writes all results or, with an error, none; it may be repeated.
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
	// Statuses returns what is wrong with the entities, in their order; State is
	// empty where nothing is.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
	// WriteFailure writes a status, unless its State is empty or a later fetch's result is
	// stored, and the letter, unless it is nil; both or neither. It may be repeated.
	WriteFailure(ctx context.Context, s store.Status, letter *store.DeadLetter) error
}

// Retries asks again for what has failed when its time has come.
type Retries interface {
	// WakeAt tells that a retry is due then. It is not an error to miss it: who
	// looks again finds it.
	WakeAt(ctx context.Context, at time.Time)
}

// Outbox carries out what follows from stored changes.
type Outbox interface {
	// Notify tells that something is to follow. It is not an error to miss it: what is to
	// follow was written down.
	Notify()
}

// Lag tells how far behind a lane is.
type Lag interface {
	// Records returns how many records are not committed, and whether that is known.
	Records(source string, lane schemas.Lane) (n int64, known bool)
}

// Deps is what a Worker is given.
type Deps struct {
	Store    Store
	Requests Requests
	Permits  Permits
	Retries  Retries
	Outbox   Outbox
	Lag      Lag
	Health   *Health // of the source, one for the workers of both lanes
	// Kafka returns the settings of the connection to the brokers for a client of this
	// name, of which there is one.
	Kafka   func(client string) []kgo.Opt
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Tracer  observe.Tracer
}
