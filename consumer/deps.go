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
	"github.com/freshet/freshet/store/deadletters"
)

// Requests is the state of requests in flight. All processes share this state in Redis.
type Requests interface {
	// Peek returns for each request whether it still needs a fetch. `stored` holds the versions of the
	// entities' snapshots, 0 for none.
	Peek(ctx context.Context, requests []schemas.UpdateRequest, stored []int64) ([]schemas.Verdict, error)
	// Begin checks the request again directly before its fetch. If the verdict is Proceed, it also
	// returns the number of the fetch, which is higher than all earlier numbers of the entity.
	Begin(ctx context.Context, r schemas.UpdateRequest, stored int64) (schemas.Verdict, int64, error)
	// Settle records how requests ended. It is idempotent.
	Settle(ctx context.Context, ends []schemas.End) error
	// ReleaseOutstanding subtracts ended requests from their clients' outstanding counts. It is
	// idempotent.
	ReleaseOutstanding(ctx context.Context, ended []schemas.Outstanding) error
}

// Permits grants permits: the right to send one upstream call. Pauses and breakers apply to all
// processes of the source.
type Permits interface {
	Acquirer
	SourcePauses
	BreakerState
	Rates
}

// Acquirer waits for permits.
type Acquirer interface {
	// Acquire waits for a permit. It fails only when ctx ends.
	Acquire(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
	// AcquireRetry waits for a permit like Acquire, for a record whose last call failed. While
	// callers of both methods wait, callers of Acquire get permits more often. A record whose last
	// call failed is the last choice for a probe.
	AcquireRetry(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
	// Reacquire waits for a permit like Acquire, but the caller gets the next permit before all
	// others. It is meant for callers whose permit expired unspent, and for probes.
	Reacquire(ctx context.Context, lane schemas.Lane, c source.Call) (Permit, error)
}

// SourcePauses stops and resumes all calls of the source.
type SourcePauses interface {
	// BackOff stops all calls to the source for d, because the upstream refused a call that was sent
	// at time `sent`. If d is 0 the upstream named no duration, and the implementation chooses one.
	// Afterwards one call is allowed, the probe. Others follow if ReportEnd shows that the upstream
	// answered the probe and did not refuse it.
	BackOff(d time.Duration, sent time.Time)
	// OpenBreaker opens the source's circuit breaker, because a call that was sent at time `sent`
	// failed for a reason that concerns all entities. The first probe is allowed after the duration
	// `first`. The pause before each further probe doubles, up to `most`, until CloseBreaker is
	// called. A call that was sent before the breaker opened does not keep it open longer.
	OpenBreaker(first, most time.Duration, sent time.Time)
	// CloseBreaker closes the source's breaker if it opened before time `sent`, because a call that
	// was sent at that time succeeded. It is called after each successful call.
	CloseBreaker(sent time.Time)
}

// BreakerState reports the state of the source's breaker.
type BreakerState interface {
	// BreakerOpenSince reports whether the source's breaker is open now or was open at any time
	// after `since`, as far as this process knows.
	BreakerOpenSince(since time.Time) bool
	// UntilBreakerOpens returns a context that ends when the source's breaker opens. While the
	// breaker is open, the returned context has ended already. BreakerClosed returns a channel that
	// is closed as soon as the breaker is closed.
	UntilBreakerOpens() context.Context
	BreakerClosed() <-chan struct{}
}

// Rates are the rates of the lanes.
type Rates interface {
	// HighPerSecond returns how many calls a second the quota's windows allow for HIGH, or infinity
	// if no window limits the rate. LowReserve returns how many calls a second are reserved for
	// LOW, 0 for none.
	HighPerSecond() float64
	LowReserve() float64
}

// Permit is the right to send one call within a short time.
type Permit interface {
	SentCall
	Grant
	CallReport
}

// SentCall follows the call that uses the permit.
type SentCall interface {
	// Spend uses the permit up. It reports whether the call may be sent now.
	Spend() bool
	// Release returns an unspent permit.
	Release()
	// Written is called when the HTTP request was written. Answered is called when the first byte
	// of the response arrived.
	Written()
	Answered()
}

// Grant describes the call for which the permit was granted.
type Grant interface {
	// Credential returns the name of the credential to use, one of source.Call.Credentials.
	Credential() string
	// IsProbe reports whether the call is a probe of a scope (endpoint, resource or credential)
	// whose breaker is open.
	IsProbe() bool
	// IsSourceProbe reports whether the call is a probe of the whole source, after a backoff or while
	// its breaker is open.
	IsSourceProbe() bool
}

// CallReport records the result of the call.
type CallReport interface {
	// ReportEnd records how the call ended, once for each spent permit, as soon as the answer
	// has arrived.
	ReportEnd(e source.CallResult)
	// OpenScopeBreaker opens the breaker of the call's scope ("endpoint", "resource" or
	// "credential"), because the upstream refused the call: for the duration `first`, and longer
	// after each further refusal, up to `most`. If first is 0, the implementation chooses a duration.
	OpenScopeBreaker(scope string, first, most time.Duration)
	// ReportSuccess closes the breakers of the call's scopes. It is called after each
	// successful call.
	ReportSuccess()
}

// Tokens provides the tokens of credentials that renew themselves.
type Tokens interface {
	// Await returns the credentials that have a valid token. If none has one, it waits for a
	// renewal. It returns an error if the renewals fail, or ctx ends.
	Await(ctx context.Context, credentials []string) ([]string, error)
	// Refused requests a renewal of the token with this generation, because the upstream has refused
	// the token. It blocks until the renewal has ended. It reports whether a newer token exists, so
	// that the call can be repeated.
	Refused(ctx context.Context, credential string, generation int64) bool
}

// Store keeps snapshots and the failure status of entities.
type Store interface {
	Snapshots
	Failures
	// EntityParams returns the params that the entities are registered with, in the order of the
	// entities. The element of an entity without registered params is nil.
	EntityParams(ctx context.Context, entities []schemas.Entity) ([]map[string]string, error)
}

// Snapshots keeps snapshots.
type Snapshots interface {
	// States returns the stored state of each entity, in the order of the entities. Version is 0 if
	// nothing is stored.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// GetAll returns the entities' snapshots, in the order of the entities. Version is 0 if nothing is
	// stored.
	GetAll(ctx context.Context, entities []schemas.Entity) ([]store.Snapshot, error)
	// Write writes all results or, with an error, none. It is idempotent.
	Write(ctx context.Context, writes []store.Write) ([]store.Result, error)
}

// Failures keeps the failure status of entities.
type Failures interface {
	// Statuses returns the failure statuses in the order of the entities. State is empty for an
	// entity that has not failed.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
	// WriteFailure writes the status and the row of the dead letter in one transaction. If
	// deadLetter is nil, it writes only the status. It skips the status if its State is empty, or
	// if the database already has the result of a later fetch. It is idempotent.
	WriteFailure(ctx context.Context, s store.Status, deadLetter *deadletters.DeadLetter) error
}

// Aliases enqueues requests for the facets that other facets take params from.
type Aliases interface {
	// RequestAlias enqueues the request. It blocks until Kafka has acknowledged a record that covers
	// the request. If a hold refuses the request, it returns the hold's reason and end. `stored` is
	// the version of the entity's snapshot, 0 for none.
	RequestAlias(ctx context.Context, r schemas.UpdateRequest, stored int64) (hold string, until time.Time, err error)
}

// Retries enqueues scheduled retries when they are due.
type Retries interface {
	// WakeAt announces that a retry is due at the time `at`. A lost announcement only delays the
	// retry: the poller finds it later by itself.
	WakeAt(ctx context.Context, at time.Time)
}

// Outbox delivers the events that were stored together with changes.
type Outbox interface {
	// Notify announces a new event. If the announcement is lost, the event is delivered later.
	Notify()
}

// Lag measures the backlog of a lane.
type Lag interface {
	// Records returns how many records are not committed. `known` is false if there is no recent
	// measurement.
	Records(source string, lane schemas.Lane) (n int64, known bool)
}

// Deps are the dependencies of a Worker.
type Deps struct {
	Store    Store
	Requests Requests
	Permits  Permits
	Retries  Retries
	Outbox   Outbox
	Aliases  Aliases
	Walks    Collections
	Items    Items
	Runs     Runs
	Lag      Lag
	Health   *Health // health of the source; the workers of both lanes share it
	Tokens   Tokens  // nil means that no credential of the source renews itself
	Hints    *Hints  // hints of the source, which the workers of both lanes share; nil means none
	// Kafka returns the connection settings of the Kafka client with this name. The worker calls it
	// once for each of its clients.
	Kafka func(client string) []kgo.Opt
	// RecordCall receives each finished upstream call, at most a few milliseconds after its end. It
	// must return at once and may be called concurrently. nil means that calls are not recorded.
	RecordCall func(CallRecord)
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	Tracer     observe.Tracer
}
