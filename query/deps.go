package query

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Deps are the dependencies of the query service.
type Deps struct {
	Store            Store
	Sources          map[string]Source // the configured sources, by name
	Enqueuer         Enqueuer
	IdempotencyKeys  IdempotencyKeys
	Credits          Credits // credits that refreshes cost; nil means that refreshes cost nothing
	SettleSubscriber SettleSubscriber
	WaitEstimator    WaitEstimator
	Authenticator    Authenticator
	ClientLimiter    ClientLimiter
	ReadRecorder     ReadRecorder // receives the numbers of reads; nil means that reads are not recorded
	Ops              http.Handler // handler of health and metrics
	Admin            http.Handler // handler of all paths below /admin/v1
	// handler of POST requests below /admin/v1/maintenance, which authenticates its clients itself;
	// nil means that there is no such path
	Maintenance http.Handler
	Hooks       Hooks        // receives the deliveries of webhooks; nil means that no webhook is configured
	Runs        Runs         // starts and reads runs; nil means that there are no paths of runs
	Console     http.Handler // serves /console and all paths below it, with its own authentication; nil means no console
	Log         *slog.Logger
	Metrics     prometheus.Registerer
	Trace       observe.Tracer
}

// Config has the settings of the query service.
type Config struct {
	// Memory is the maximum size of the snapshot cache in bytes.
	Memory int64
	// ResponseMemory is the maximum memory in bytes of all responses being written; 0 means
	// DefaultResponseMemory. One client may use half of it.
	ResponseMemory int64
	// Origins are the web origins whose pages may read responses in a browser (CORS).
	Origins []string
	// Proxies are the networks (CIDR) of trusted proxies: their X-Forwarded-For is used.
	Proxies []string
}

// Store reads snapshots.
type Store interface {
	// Get returns an entity's snapshot, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	// GetAll returns the snapshots of several entities, in the order of the entities and in one
	// round trip. A snapshot with the version 0 means that nothing is stored.
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
	// EntityParams returns the params that the entities are registered with, in the order of the
	// entities. The element of an entity without registered params is nil.
	EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error)
	// Items returns the items of a range of a collection.
	Items(ctx context.Context, e schemas.Entity, r collection.Range) ([]collection.Item, error)
}

// Source validates the facets and keys of one upstream, and knows the visibility of each key.
type Source interface {
	Facets
	// Visibility returns the visibility that a fetch of the key would have now; empty means visible to
	// all readers. It is called for each read and must be fast.
	Visibility(key string) string
	// Visibilities returns all visibilities that the source's entities can have. The empty string
	// means that all readers can see an entity.
	Visibilities() []string
}

// Facets validates the facets and keys of a source.
type Facets interface {
	Facet(name string) (source.Facet, bool)
	// FacetNames returns the names of the facets, sorted.
	FacetNames() []string
	CheckKey(facet, key string) error
	// MissingParams returns the names of the params for which neither the key, the facet nor the
	// argument `params` has a value. It is called for each update request and must be fast.
	MissingParams(facet, key string, params map[string]string) []string
}

// UpdateRequest is a request to refresh one entity, in the HIGH lane.
type UpdateRequest struct {
	Entity        schemas.Entity
	Reason        schemas.Reason
	Floor         int64 // version of the snapshot that the client read; 0 means none
	Cooldown      time.Duration
	CorrelationID string
	TraceParent   string
	// Client is the schemas.ClientID of the client whose limits the request counts toward; empty means
	// no limits. New is true if neither the cache nor the store has a snapshot that can be served.
	Client string
	New    bool
}

// EnqueueResult says whether one UpdateRequest was queued or refused, and why.
type EnqueueResult struct {
	// Queued: a record that covers the request is in the producer's buffer or acknowledged by
	// Kafka. After EnqueueAndWait it is always acknowledged.
	Queued bool
	// Pending: Kafka has not acknowledged the covering record yet, so the publish of that record
	// may still fail. A caller that needs the refresh must enqueue the request again.
	Pending bool
	// Number is the number of the published request: this request, or an earlier request that
	// covers it. A fetch that begins after the published request has a higher number.
	Number int64
	// Reason says why the request is not queued. Until is when a retry may succeed; zero means
	// unknown.
	Reason RefreshReason
	Until  time.Time
	// Refused is set if the request exceeds a limit of its client. Reason says which limit.
	Refused *access.Refusal

	isRepeated bool          // the request was found by its idempotency key, and was not enqueued again
	refused    error         // the problem to respond with, if a limit of the client is exceeded or params are missing
	waited     time.Duration // how long the read has waited for the result, if Reason is reasonSlow
}

// RefreshReason is the reason why a refresh is not queued, or is queued but not done. The reasons of
// holds begin with HELD_. schemas/openapi.yaml (RefreshReason) lists all values.
type RefreshReason string

// Reasons why an update request is not queued.
const (
	reasonPending  RefreshReason = "PENDING"
	ReasonCooldown RefreshReason = "COOLDOWN"
	ReasonBusy     RefreshReason = "BUSY"        // a queue is full, because Kafka or Redis is too slow
	ReasonDown     RefreshReason = "UNAVAILABLE" // Redis or Kafka is unavailable or rejects the request
	reasonSlow     RefreshReason = "SLOW"        // no result in time; the request may still be queued
	ReasonTooMany  RefreshReason = "TOO_MANY"    // the client exceeded its limit of new keys
	// ReasonMissingParams: the entity is not registered with the params that its facet needs.
	ReasonMissingParams RefreshReason = "MISSING_PARAMS"
	// ReasonOutstanding: the client has used its share of outstanding requests.
	ReasonOutstanding RefreshReason = "TOO_MANY_OUTSTANDING"
	// ReasonNoCredits: the client has too few credits.
	ReasonNoCredits RefreshReason = "NO_CREDITS"
	reasonBadKey    RefreshReason = "BAD_KEY"
	reasonNotFound  RefreshReason = "NOT_FOUND" // there is no such entity, or the client may not see it
)

// Reasons why a queued refresh waits: the source sends no calls now.
const (
	ReasonStopped      RefreshReason = "STOPPED"       // an operator has stopped all calls of the source
	ReasonUpstreamDown RefreshReason = "UPSTREAM_DOWN" // the source's circuit breaker is open
	ReasonBackingOff   RefreshReason = "BACKING_OFF"   // the upstream refused calls
)

// HeldReason returns the reason for a hold: one of the schemas.Hold… constants.
func HeldReason(hold string) RefreshReason { return RefreshReason(heldPrefix + hold) }

// isHeld reports whether the entity is held.
func (r RefreshReason) isHeld() bool { return strings.HasPrefix(string(r), heldPrefix) }

const heldPrefix = "HELD_"

// Enqueuer enqueues update requests in the HIGH lane.
type Enqueuer interface {
	// Enqueue returns a result for each request, in the order of the requests. It does not wait
	// for Kafka.
	Enqueue(ctx context.Context, requests []UpdateRequest) []EnqueueResult
	// EnqueueAndWait returns a result for each request, in the order of the requests. It blocks until
	// each request was acknowledged by Kafka or refused. If ctx ends first, the remaining results are
	// Pending.
	EnqueueAndWait(ctx context.Context, requests []UpdateRequest) []EnqueueResult
}

// IdempotencyKeys keeps the numbers of refreshes that clients have requested with the header
// Idempotency-Key, for a few minutes and for all query services. `client` is a schemas.ClientID.
type IdempotencyKeys interface {
	// Find returns the number of the request that the client has enqueued for the entity with the key;
	// 0 means none.
	Find(ctx context.Context, client string, e schemas.Entity, key string) (number int64, err error)
	Save(ctx context.Context, client string, e schemas.Entity, key string, number int64) error
}

// Credits sets credits aside for refreshes. Its methods return within a few seconds.
type Credits interface {
	// Reserve sets credits aside for a refresh of each entity. The caller must call Confirm with all
	// reservations.
	Reserve(ctx context.Context, client access.Client, of []schemas.Entity, idempotencyKey string) []credits.Reservation
	// Confirm records the results of the enqueues.
	Confirm(ctx context.Context, results []credits.Enqueued)
	// Balance returns the account of a client. `known` is false for a client that pays nothing.
	Balance(ctx context.Context, client access.Client) (a credits.Account, known bool, err error)
}

// SettleSubscriber receives a message for each request that any process settles.
type SettleSubscriber interface {
	// Subscribe calls `onSettled` for each message until ctx ends. It calls onConnected(true) before
	// the first message, and onConnected(false) when the connection is lost. All calls come from one
	// goroutine. Messages sent while disconnected are lost.
	Subscribe(ctx context.Context, onSettled func(schemas.Settled), onConnected func(connected bool)) error
}

// WaitEstimator knows what the limiter of a source allows now. Its methods must not block.
type WaitEstimator interface {
	// EstimateWait returns how long the HIGH request with this number will probably still wait, and
	// the time at which that was measured. The number 0 stands for a request that is published now. If known is
	// false, there is no estimate.
	EstimateWait(source string, number int64) (wait time.Duration, measured time.Time, known bool)
	// Blocked returns why the source sends no calls now: ReasonStopped, ReasonUpstreamDown or
	// ReasonBackingOff; empty means that it sends calls. The time is the end of the backoff or the
	// time of the next probe; zero means unknown.
	Blocked(source string) (RefreshReason, time.Time)
}

// Authenticator identifies the client of a request. Its errors are *problem.HTTPError.
type Authenticator interface {
	Authenticate(r *http.Request, address string) (access.Client, error)
}

// ClientLimiter limits the requests of each client. Its errors are *problem.HTTPError.
type ClientLimiter interface {
	LookupLimiter
	// AllowRequests counts n requests; an error means that none of them is allowed.
	AllowRequests(client string, n int) error
	// RecordRefusal counts, in the metrics, an update request that a limit in Redis has refused. It
	// returns the problem to respond with.
	RecordRefusal(r access.Refusal) error
	// AcquireWaitSlot reserves a slot for a client that waits or streams. The caller must call
	// `release`.
	AcquireWaitSlot(client string) (release func(), err error)
}

// LookupLimiter limits the lookups of keys that are not cached.
type LookupLimiter interface {
	// AllowLookup returns an error if the client may not look up a key that is not cached.
	AllowLookup(client string) error
	// RecordMisses counts n lookups of the client that found nothing in the store.
	RecordMisses(client string, n int)
}

// ReadCount is the number of reads of an entity since the last call of RecordReads.
type ReadCount struct {
	Entity schemas.Entity
	Count  int
}

// ReadRecorder records which entities are read, so that they can be prefetched. Only a response
// with a snapshot counts as a read. Events of a stream do not count.
type ReadRecorder interface {
	// Counts reports whether reads of the facet are recorded. It is called for each read and
	// must be fast.
	Counts(source, facet string) bool
	// RecordReads records reads that were made before the time `until`. The argument `reads` has
	// each entity once. If the call fails, its reads are lost. No client waits for the call.
	RecordReads(ctx context.Context, reads []ReadCount, until time.Time) error
}
