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

// Deps are what the console shows, and by what it acts.
type Deps struct {
	// Sources are their names, sorted, and Facets those of each.
	Sources  []string
	Facets   map[string][]string
	Overview Overview
	Entities Entities
	Limits   Limits
	// Schedule is asked only where somebody looks.
	Schedule Schedule
	DLQ      DLQ
	// Audit keeps the acts that leave no entry of their own.
	Audit Audit
	Guard Guard
	// Meters bounds what one client may ask of this process.
	Meters ClientLimiter
	// FaultScenarios breaks the upstream of a demonstration; nil: there is none.
	FaultScenarios FaultScenarios
	// Process names this one among those that serve reads.
	Process string
	// ReadOnly: nobody may change anything by this console, whoever they are.
	ReadOnly bool
	Version  string
	Clock    func() time.Time
	Log      *slog.Logger
}

// Guard knows who asks. A request has its token in Authorization, where the console puts it
// from its cookie.
type Guard interface {
	Authenticate(r *http.Request, address string) (access.Client, error)
	// Required reports whether anybody is asked who they are.
	AuthRequired() bool
}

// ClientLimiter counts what clients ask for.
type ClientLimiter interface {
	// AllowRequests counts n requests; an error, a *problem.HTTPError, says that they may not be.
	AllowRequests(client string, n int) error
}

// Overview is what is going on.
type Overview interface {
	// Lanes says how far behind each lane is; it is sampled in the background and costs
	// nothing to ask.
	Lanes(source string) []LaneLag
	// Reads says what readers of this process were told in the last five minutes.
	Reads() []ReadStats
	// Dependencies says which of them answer; it asks them no more than once a second.
	Dependencies(ctx context.Context) []Dependency
}

// LaneLag is how far behind one lane of a source is.
type LaneLag struct {
	Lane schemas.Lane
	// Records that wait, and for how long the next one will; Known: the records were counted
	// lately; WaitKnown: so was how many are worked on. Without records there is no wait.
	Records      int64
	Wait         time.Duration
	RecordsKnown bool
	// WaitKnown is false while nobody works. Unworked is for how long nobody has on records
	// that wait, as far back as is known, which is about a minute.
	WaitKnown  bool
	StalledFor time.Duration
}

// ReadStats are what readers of a source were told.
type ReadStats struct {
	Source                           string
	Fresh, Stale, Updating, NotFound int64
	// AgeP50 is an age that half of the snapshots were not older than, AgeP95 one that 95
	// of 100 were not; zero: nobody has read.
	AgeP50, AgeP95 time.Duration
}

// Dependency is one service that the process leans on.
type Dependency struct {
	Name  string
	Error string // empty: it answers
}

// Entities is what is known of one entity.
type Entities interface {
	// Entity returns all of it. Of an entity that the client may not see it returns what it
	// returns of one of which nothing is known.
	Entity(ctx context.Context, e schemas.Entity, c access.Client) (Entity, error)
	// Sees reports whether the client may see an entity whose content was fetched within the
	// visibility, and what would be fetched of it now.
	Sees(c access.Client, e schemas.Entity, visibility string) bool
	// CheckKey returns why there can be no such entity.
	CheckKey(e schemas.Entity) error
	// Refresh enqueues refreshes of entities of one facet in the HIGH lane, as a person does,
	// and returns a result for each. An entity that the client may not see is refused.
	Refresh(ctx context.Context, all []schemas.Entity, c access.Client) ([]RefreshResult, error)
}

// RefreshResult is the result of the refresh of one entity.
type RefreshResult struct {
	Queued  bool
	Message string // in words
}

// Audit keeps the entries of acts.
type Audit interface {
	// WriteAudit writes an entry by itself.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
}

// Entity is what is known of one entity.
type Entity struct {
	Entity schemas.Entity
	// Stored: State says of what; Payload is the content.
	Stored  bool
	State   store.State
	Payload []byte
	// FreshFor is for how long it counts as fresh after a check, AbsentFor for how long an
	// absence is believed, and KeepFor after which time content is not served; 0: there is none.
	FreshFor, AbsentFor, KeepFor time.Duration
	// Status is what is known of its failures; its State is empty if there are none.
	Status  store.Status
	Request RequestState
	// Registered is nil if it is not prefetched.
	Registered *store.RegisteredEntity
	// DeadLetters are its newest dead letters.
	DeadLetters []store.DeadLetter
}

// RequestState is what Redis knows of the requests of an entity; the zero value: nothing is under way.
type RequestState struct {
	Lane          schemas.Lane // of the request under way; empty: none
	Number        int64
	Confirmed     bool // Kafka has it
	Until         time.Time
	Issued        int64 // the last number issued; above Number: a fetch is under way
	Done          int64 // the last number satisfied
	Hold          string
	HoldUntil     time.Time
	Unknown       bool // Redis did not answer
	CooldownUntil time.Time
}

// Limits are the quotas, and what is changed of them while they are in use.
type Limits interface {
	// View is what the limiter does; its State is StateStopping while a stop is set and not
	// obeyed yet, and StateResuming while its end is.
	View(ctx context.Context, source string) (limiter.View, error)
	Get(ctx context.Context, source string) (settings.State, error)
	Change(ctx context.Context, o settings.ChangeRequest, p settings.Patch) (settings.State, error)
	Stop(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
	Resume(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
	Audit(ctx context.Context, limit int) ([]settings.Entry, error)
}

// DLQ are the dead letters.
type DLQ interface {
	List(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetter, limit int) ([]store.DeadLetter, error)
	Groups(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error)
	Show(ctx context.Context, id store.DeadLetterID) (schemas.DeadLetter, error)
	Plan(ctx context.Context, o dlq.JobSpec) (dlq.Plan, error)
	StartJob(ctx context.Context, o dlq.JobSpec, actor string) (store.DLQJob, error)
	SetJobState(ctx context.Context, id string, to store.JobState, actor string) (store.DLQJob, error)
	Jobs(ctx context.Context) ([]store.DLQJob, error)
	// Job returns one by its id, or store.ErrJobNotFound.
	Job(ctx context.Context, id string) (store.DLQJob, error)
}

// FaultScenarios is how the upstream of a demonstration behaves.
type FaultScenarios interface {
	List() []FaultScenario
	Current() string
	Set(ctx context.Context, name string) error
}

// FaultScenario is one way in which it may behave.
type FaultScenario struct{ Name, Title, Description string }
