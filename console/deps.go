package console

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store"
)

// Deps are the dependencies of the console.
type Deps struct {
	// Sources are the sorted names of the sources, and Facets the facets of each source.
	Sources  []string
	Facets   map[string][]string
	Overview Overview
	Entities Entities
	Limits   Limits
	// Schedule is read only while there are viewers.
	Schedule Schedule
	DLQ      DLQ
	// Audit stores the audit entries of actions that store none themselves.
	Audit Audit
	Guard Guard
	// Meters limits the request rate of each client.
	Meters ClientLimiter
	// FaultScenarios controls the upstream of a demonstration; nil: the upstream is real.
	FaultScenarios FaultScenarios
	// Process is the name of this process.
	Process string
	// ReadOnly disables all actions, for every client.
	ReadOnly bool
	Version  string
	Clock    func() time.Time
	Log      *slog.Logger
}

// Guard authenticates requests. The console copies the token of its cookie to the Authorization
// header.
type Guard interface {
	Authenticate(r *http.Request, address string) (access.Client, error)
	// Required reports whether clients must authenticate.
	AuthRequired() bool
}

// ClientLimiter limits the request rate of clients.
type ClientLimiter interface {
	// AllowRequests counts n requests of a client. It returns a *problem.HTTPError if they exceed
	// the limit.
	AllowRequests(client string, n int) error
}

// Overview reads the current state of the process and its sources.
type Overview interface {
	// Lanes returns the lag of each lane. It is sampled in the background, so the call is cheap.
	Lanes(source string) []LaneLag
	// Reads returns the read statistics of this process over the last five minutes.
	Reads() []ReadStats
	// Dependencies returns the health of the dependencies. It checks them at most once a second.
	Dependencies(ctx context.Context) []Dependency
}

// LaneLag is the backlog of one lane of a source.
type LaneLag struct {
	Lane schemas.Lane
	// Records is the number of waiting records, and Wait the estimated wait of a new one.
	// RecordsKnown: the records were counted recently. Without records there is no wait.
	Records      int64
	Wait         time.Duration
	RecordsKnown bool
	// WaitKnown is false while no record is processed, because the throughput is unknown.
	// StalledFor is how long no waiting record was processed; about a minute of history is known.
	WaitKnown  bool
	StalledFor time.Duration
}

// ReadStats counts the reads of a source by freshness.
type ReadStats struct {
	Source                           string
	Fresh, Stale, Updating, NotFound int64
	// AgeP50 and AgeP95 are percentiles of the snapshot age; 0: there were no reads.
	AgeP50, AgeP95 time.Duration
}

// Dependency is a service that the process needs.
type Dependency struct {
	Name  string
	Error string // empty: it is healthy
}

// Entities reads and refreshes entities.
type Entities interface {
	// Entity returns the state of an entity. If the client may not see the entity, the result
	// equals that of an unknown entity.
	Entity(ctx context.Context, e schemas.Entity, c access.Client) (Entity, error)
	// Sees reports whether the client may see an entity: both the content that was fetched with
	// this visibility, and the content that a fetch would return now.
	Sees(c access.Client, e schemas.Entity, visibility string) bool
	// CheckKey returns an error if the entity can't exist.
	CheckKey(e schemas.Entity) error
	// Refresh enqueues manual refreshes of entities of one facet in the HIGH lane, and returns one
	// result for each. It rejects entities that the client may not see.
	Refresh(ctx context.Context, all []schemas.Entity, c access.Client) ([]RefreshResult, error)
}

// RefreshResult is the result of one refresh.
type RefreshResult struct {
	Queued  bool
	Message string // a sentence for the page
}

// Audit stores audit entries.
type Audit interface {
	// WriteAudit stores an entry outside of any other transaction.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// Entity is the state of one entity.
type Entity struct {
	Entity schemas.Entity
	// Stored: State and Payload are of the stored snapshot.
	Stored  bool
	State   store.State
	Payload []byte
	// FreshFor is how long a snapshot is fresh after a check. AbsentFor is the TTL of a stored
	// not-found. KeepFor is how long content is served after its fetch; 0: no limit.
	FreshFor, AbsentFor, KeepFor time.Duration
	// Status holds its failures; its State is empty if there are none.
	Status  store.Status
	Request RequestState
	// Registered is nil if the entity is not prefetched.
	Registered *store.RegisteredEntity
	// DeadLetters are its newest dead letters.
	DeadLetters []store.DeadLetter
}

// RequestState is the state of an entity's requests in Redis. The zero value: no request is in
// flight.
type RequestState struct {
	Lane          schemas.Lane // of the request in flight; empty: none
	Number        int64
	Confirmed     bool // Kafka has acknowledged it
	Until         time.Time
	Issued        int64 // last version issued; above Number: a fetch is running
	Done          int64 // last version satisfied
	Hold          string
	HoldUntil     time.Time
	Unknown       bool // Redis did not answer
	CooldownUntil time.Time
}

// Limits reads the limiter and changes its settings.
type Limits interface {
	// View returns the limiter's state. Its State is StateStopping or StateResuming while the
	// processes have not applied a stop or a resume yet.
	View(ctx context.Context, source string) (limiter.View, error)
	Get(ctx context.Context, source string) (settings.State, error)
	Change(ctx context.Context, o settings.ChangeRequest, p settings.Patch) (settings.State, error)
	Stop(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
	Resume(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
	Audit(ctx context.Context, limit int) ([]settings.Entry, error)
}

// DLQ reads, replays and purges dead letters.
type DLQ interface {
	List(ctx context.Context, filter store.DeadLetterFilter, after store.DeadLetter, limit int) ([]store.DeadLetter, error)
	Groups(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error)
	Show(ctx context.Context, id store.DeadLetterID) (schemas.DeadLetter, error)
	Plan(ctx context.Context, o dlq.JobSpec) (dlq.Plan, error)
	StartJob(ctx context.Context, o dlq.JobSpec, actor string) (store.DLQJob, error)
	SetJobState(ctx context.Context, id string, to store.JobState, actor string) (store.DLQJob, error)
	Jobs(ctx context.Context) ([]store.DLQJob, error)
	// Job returns a job by its id, or store.ErrJobNotFound.
	Job(ctx context.Context, id string) (store.DLQJob, error)
}

// FaultScenarios controls the faults of a demonstration's upstream.
type FaultScenarios interface {
	List() []FaultScenario
	Current() string
	Set(ctx context.Context, name string) error
}

// FaultScenario is a named set of faults.
type FaultScenario struct{ Name, Title, Description string }
