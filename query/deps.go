package query

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// Deps are what the query service works with.
type Deps struct {
	Store            Store
	Sources          map[string]Source // by name
	Enqueuer         Enqueuer
	SettleSubscriber SettleSubscriber
	WaitEstimator    WaitEstimator
	Authenticator    Authenticator
	ClientLimiter    ClientLimiter
	ReadRecorder     ReadRecorder // nil: nobody is told, and nothing is counted
	Ops              http.Handler // answers for health and metrics
	Admin            http.Handler // answers whatever lies below /admin/v1
	Console          http.Handler // answers /console and whatever lies below it, and asks Guard itself; nil: there is none
	Log              *slog.Logger
	Metrics          prometheus.Registerer
	Trace            observe.Tracer
}

// Config is what can be configured of the query service.
type Config struct {
	// Memory is how many bytes of snapshots are kept in front of the store.
	Memory int64
	// ResponseMemory is how many bytes the responses that are being written may hold;
	// 0: DefaultResponseMemory. One client may hold half of it.
	ResponseMemory int64
	// Origins are those whose pages may read answers in a browser.
	Origins []string
	// Proxies are the networks (CIDR) of proxies whose X-Forwarded-For is believed.
	Proxies []string
}

// Store is where snapshots are read.
type Store interface {
	// Get returns an entity's snapshot, or store.ErrNotFound.
	Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error)
	// GetAll returns the snapshots of the entities in their order, in one round
	// trip; Version is 0 where nothing is stored.
	GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error)
}

// Source knows an upstream's facets, which keys they take and who may see what.
type Source interface {
	Facet(name string) (source.Facet, bool)
	CheckKey(facet, key string) error
	// Visibility returns who may see what would be fetched for a key now; empty: every
	// reader. It is asked for each read and must be quick.
	Visibility(key string) string
}

// UpdateRequest asks for a refresh of one entity.
type UpdateRequest struct {
	Entity        schemas.Entity
	Reason        schemas.Reason
	Floor         int64 // version of the snapshot that was read
	Cooldown      time.Duration
	CorrelationID string
	TraceParent   string
	// Client is the schemas.ClientID of the client whose request this is; empty: nobody's.
	// New: nothing is stored of the entity, as far as is known.
	Client string
	New    bool
}

// EnqueueResult is what became of a Wish.
type EnqueueResult struct {
	// Queued: a record that covers the wish is in the producer's buffer or in
	// Kafka; in Kafka, if it was insisted on.
	Queued bool
	// Pending: a record that would cover the wish is in the air; ask again for
	// certainty.
	Pending bool
	// Number is that of the request which covers the wish; a fetch that begins
	// after it has a higher one.
	Number int64
	// Reason says why it is not queued; Until is when asking again may help, if
	// that is known.
	Reason string
	Until  time.Time
	// Refused: the client has more outstanding than its share, or asks for too many new
	// entities. Reason says which.
	Refused *access.Refusal

	refused error         // the problem, if this client is beyond a bound
	waited  time.Duration // for an answer, if the reason is reasonSlow
}

// The reasons for which a wish is not queued, besides those of holds (HELD_…).
const (
	reasonPending  = "PENDING"
	ReasonCooldown = "COOLDOWN"
	ReasonBusy     = "BUSY"        // Kafka takes records more slowly than they come
	ReasonDown     = "UNAVAILABLE" // Redis or Kafka is away, or refuses
	reasonSlow     = "SLOW"        // it could not be said in time; it may be queued yet
	ReasonTooMany  = "TOO_MANY"    // this client has asked for as many new entities as it may
	// ReasonOutstanding: as many of this client's requests are outstanding as its share is.
	ReasonOutstanding = "TOO_MANY_OUTSTANDING"
)

// Enqueuer queues refreshes in the HIGH lane.
type Enqueuer interface {
	// Enqueue answers each wish, in their order. It does not wait for Kafka, and
	// for nothing else for long.
	Enqueue(ctx context.Context, wishes []UpdateRequest) []EnqueueResult
	// EnqueueAndWait answers wishes that must not be lost, in their order. Each is answered when
	// Kafka has a record that covers it, or none is to come, or with Pending when ctx has
	// ended.
	EnqueueAndWait(ctx context.Context, wishes []UpdateRequest) []EnqueueResult
}

// SettleSubscriber tells of requests that were settled by any process.
type SettleSubscriber interface {
	// Subscribe calls heard for each until ctx ends, and line(true) before the first
	// and line(false) when nothing is heard any more, in order and from one
	// goroutine. What is settled while the line is down is not told.
	Subscribe(ctx context.Context, heard func(schemas.Settled), line func(up bool)) error
}

// WaitEstimator tells how long a request will wait in a lane, when that was measured, and
// whether it is known, without asking anybody.
type WaitEstimator interface {
	EstimateWait(source string, lane schemas.Lane) (wait time.Duration, measured time.Time, known bool)
}

// Authenticator knows who sends a request. Its errors are problems.
type Authenticator interface {
	Authenticate(r *http.Request, address string) (access.Client, error)
}

// ClientLimiter bound what one client may ask for. Their errors are problems.
type ClientLimiter interface {
	// AllowRequests counts n requests.
	AllowRequests(client string, n int) error
	// AllowLookup reports whether a client may have the store searched for a key that is not
	// in memory, and Missed counts n keys of which the store then had nothing.
	AllowLookup(client string) error
	RecordMisses(client string, n int)
	// RecordRefusal counts what the counts of all processes refuse, and returns its problem.
	RecordRefusal(r access.Refusal) error
	// AcquireWaitSlot counts a client that waits, until it leaves.
	AcquireWaitSlot(client string) (leave func(), err error)
}

// ReadCount is how often an entity was read since it was told last.
type ReadCount struct {
	Entity schemas.Entity
	Count  int
}

// ReadRecorder is told who is read: whoever is answered with a snapshot, or that a copy is on
// its way. Who asks for a refresh counts as well, who follows an entity does not.
type ReadRecorder interface {
	// Counts reports whether reads of the facet are to be counted. It is asked on the
	// path of reads and must be quick.
	Counts(source, facet string) bool
	// RecordReads is told of reads up to a time, each entity once; what fails is lost, and
	// nobody waits for it.
	RecordReads(ctx context.Context, reads []ReadCount, until time.Time) error
}
