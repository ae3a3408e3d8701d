package console

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/dlq"
	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/source/derived"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/webhooks"
)

// Deps are the dependencies of the console.
type Deps struct {
	// Sources are the names of the sources in sorted order. Facets are the facet names of each
	// source.
	Sources  []string
	Facets   map[string][]string
	Overview Overview
	Cluster  Cluster
	Entities Entities
	Items    Items
	Limits   Limits
	// Schedule reads the state of prefetching. The console calls it only while a page with live
	// content is open.
	Schedule Schedule
	DLQ      DLQ
	DLQIndex DLQIndex
	Store    Store
	Guard    Guard
	// Clients reads the credits of clients; nil: refreshes cost no credits.
	Clients Clients
	// Meters limits the request rate of each client.
	Meters ClientLimiter
	// FaultScenarios controls the simulated upstream of a demonstration; nil: the upstream is real.
	FaultScenarios FaultScenarios
	// Runs reads and changes runs.
	Runs Runs
	About
	// ReadOnly disables all actions, for every client.
	ReadOnly bool
	Clock    func() time.Time
	Log      *slog.Logger
}

// About is the information about this process that the console shows.
type About struct{ Process, Version string }

// Guard authenticates requests by the Authorization header. For a request with a session cookie,
// the console sets that header to the token in the cookie.
type Guard interface {
	Authenticate(r *http.Request, address string) (access.Client, error)
	// AuthRequired reports whether clients must authenticate.
	AuthRequired() bool
}

// ClientLimiter limits the request rate of clients.
type ClientLimiter interface {
	// AllowRequests counts n requests of a client. If they exceed the client's limit, it returns a
	// *problem.HTTPError.
	AllowRequests(client string, n int) error
}

// Overview reads the current state of the process and its sources.
type Overview interface {
	// Lanes returns the lag of each lane of the source. The values are measured in the background,
	// so Lanes returns at once.
	Lanes(source string) []LaneLag
	// Reads returns one status.ReadStats for each source. They cover the reads that this process has
	// served in the last five minutes.
	Reads() []status.ReadStats
	// History returns the samples of a source after a time in Unix seconds; 0: all samples, which
	// cover at most one hour.
	History(source string, after int64) status.History
	// Dependencies returns the health of the services that this process needs. It checks each
	// service at most once a second.
	Dependencies(ctx context.Context) []Dependency
}

// Cluster reads the state that all processes share.
type Cluster interface {
	// Processes returns the running processes of all roles.
	Processes(ctx context.Context) (status.Processes, error)
	// Calls returns the newest upstream calls of all processes.
	Calls(ctx context.Context) (status.Calls, error)
	// Credentials returns the states of the credentials that renew themselves.
	Credentials(ctx context.Context) ([]status.Credential, error)
	// Hooks returns the deliveries of each webhook, sorted by sources and names.
	Hooks(ctx context.Context) ([]webhooks.Deliveries, error)
}

// Schedule reads the state of prefetching, retries and the outbox.
type Schedule interface {
	// Schedule returns the state of a source. The console calls Schedule every second, so it
	// returns cached values. It reads the database rarely, and counts no more than Due.MaxCounted
	// rows. If a value was not read yet or can't be read, its field Error is set.
	Schedule(ctx context.Context, source string) status.Schedule
}

// LaneLag is the backlog of one lane of a source.
type LaneLag struct {
	Lane schemas.Lane
	// Records is the number of Kafka records that wait in the lane. Wait is the estimated time
	// until a new record would be processed (0 if no records wait). RecordsKnown is false if the
	// records could not be counted recently.
	Records      int64
	Wait         time.Duration
	RecordsKnown bool
	// WaitKnown is false while no record is processed: without a throughput no wait can be
	// estimated. StalledFor is the time for which records have waited without any record being
	// processed. It is at most about a minute, because older measurements are discarded.
	WaitKnown  bool
	StalledFor time.Duration
}

// Dependency is a service that this process needs, for example Redis.
type Dependency struct {
	Name  string
	Error string // why the service is unhealthy; empty: it is healthy
}

// Entities reads the states of entities and enqueues their refreshes.
type Entities interface {
	// Entity returns the state of an entity. If the client may not see the entity, the result is
	// the same as for an entity that does not exist.
	Entity(ctx context.Context, e schemas.Entity, c access.Client) (Entity, error)
	// Sees reports whether the client may see an entity. The parameter `visibility` is the label of
	// the stored content. The client must be allowed to see content with that label, and also
	// content with the label that the entity would get if it were fetched now.
	Sees(c access.Client, e schemas.Entity, visibility string) bool
	// CheckKey returns an error if the key is invalid for the entity's facet.
	CheckKey(e schemas.Entity) error
	// Refresh enqueues manual refreshes in the HIGH lane. All entities are of one facet. It returns
	// one result for each entity, and rejects entities that the client may not see.
	Refresh(ctx context.Context, all []schemas.Entity, c access.Client) ([]RefreshResult, error)
}

// Items finds entities, and items of collections.
type Items interface {
	// Find returns a page of the items of a facet. It leaves out entities for which the function
	// `visible` returns false; its parameters are the entity and the visibility label of its content.
	Find(ctx context.Context, q find.ItemQuery, visible func(e schemas.Entity, visibility string) bool) (find.ItemPage, error)
	// Ages counts the ages of a sample of the prefetched entities of a source.
	Ages(ctx context.Context, source string) (find.Ages, error)
	// Collection returns the state of a collection, and the listed items without their content. The
	// version of the state is 0 if nothing is stored.
	Collection(ctx context.Context, e schemas.Entity, l collection.Listing) (collection.State, []collection.Item, error)
	// Item returns one item of a collection with its content; nil: there is no such item.
	Item(ctx context.Context, e schemas.Entity, id string) (*collection.Item, error)
}

// RefreshResult is the result of the refresh of one entity.
type RefreshResult struct {
	Queued  bool
	Message string // sentence that describes the result to the operator
}

// Store is the database.
type Store interface {
	// WriteAudit stores an audit entry in its own transaction. The console uses it for actions, such
	// as refreshes, whose service does not write an audit entry itself.
	WriteAudit(ctx context.Context, entry store.AuditEntry) error
	// States returns the states of the entities in the given order. Version is 0 for an entity
	// without a stored state.
	States(ctx context.Context, entities []schemas.Entity) ([]store.State, error)
	// Statuses returns the failures of the entities in the given order. State is empty for an entity
	// without failures.
	Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error)
}

// Entity is the state of one entity, for the page of the entity.
type Entity struct {
	Entity schemas.Entity
	// Stored is true if a snapshot or a not-found result is stored, which State and Payload describe.
	Stored  bool
	State   store.State
	Payload []byte
	store.Lifetimes
	// Collection is true if the facet is a collection. Then Payload is the content of its snapshot.
	Collection bool
	// Status describes the failures of the entity. Status.State is empty if there are none.
	Status  store.Status
	Request RequestState
	// Aliases are the values that the entity takes from other facets, by the name of the param.
	Aliases []Alias
	// Derived says how the content of the entity is computed; nil: the content is fetched.
	Derived *Derived
	// ChangingMember is the name of the only JSON member that changes at every check of the entity's
	// facet, for example a timestamp; empty: no such member is known.
	ChangingMember string
	// Registered is nil if the entity is not registered for prefetching.
	Registered *prefetched.RegisteredEntity
	// DeadLetters are the newest dead letters of the entity.
	DeadLetters []deadletters.DeadLetter
}

// Derived says how the content of an entity of a derived facet is computed.
type Derived struct {
	From  string        // the collections, periods and measures, as text
	After time.Duration // time from the first change of an item to the computation
	Read  []derived.Read
}

// Alias is a value that an entity takes from the snapshot of another facet of the same key.
type Alias struct {
	Param, From string // name of the param, and the other facet
	Value       string // empty: the other facet has no value
	Stored      bool   // a snapshot or a not-found result of the alias is stored, which State describes
	State       store.State
	store.Lifetimes
}

// RequestState is the state in Redis of the requests of an entity. In the zero value no request is
// in flight.
type RequestState struct {
	Lane          schemas.Lane // lane of the request in flight; empty: no request is in flight
	Number        int64        // version of the request in flight
	Confirmed     bool         // Kafka has acknowledged the request in flight
	Until         time.Time    // end of the lock of the request in flight
	Issued        int64        // highest version of a request or fetch of the entity; if Issued > Number, the request in flight is being fetched
	Done          int64        // highest version of a request that has been satisfied
	Hold          string
	HoldUntil     time.Time
	Unknown       bool // Redis did not answer; the other fields are empty
	CooldownUntil time.Time
}

// Limits reads the state of the limiter, and reads and changes its settings.
type Limits interface {
	LimitChanges
	// View returns the state of the source's limiter. After an operator stops or resumes the
	// source, View.State is limiter.StateStopping or limiter.StateResuming until Redis reports the
	// change.
	View(ctx context.Context, source string) (limiter.View, error)
	Get(ctx context.Context, source string) (settings.State, error)
	Audit(ctx context.Context, limit int) ([]settings.Entry, error)
}

// LimitChanges changes the settings of a source.
type LimitChanges interface {
	Change(ctx context.Context, o settings.ChangeRequest, p settings.Patch) (settings.State, error)
	Stop(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
	Resume(ctx context.Context, o settings.ChangeRequest) (settings.State, error)
}

// DLQ reads, replays and purges dead letters.
type DLQ interface {
	DeadLetters
	DLQJobs
	Plan(ctx context.Context, o dlq.JobSpec) (dlq.Plan, error)
}

// DeadLetters reads dead letters.
type DeadLetters interface {
	List(ctx context.Context, filter deadletters.Filter, after deadletters.DeadLetter, limit int) ([]deadletters.DeadLetter, error)
	Groups(ctx context.Context, filter deadletters.Filter) ([]deadletters.Group, error)
	Show(ctx context.Context, id deadletters.ID) (schemas.DeadLetter, error)
}

// DLQJobs starts, stops and reads jobs.
type DLQJobs interface {
	StartJob(ctx context.Context, o dlq.JobSpec, actor string) (deadletters.Job, error)
	SetJobState(ctx context.Context, id string, to deadletters.JobState, actor string) (deadletters.Job, error)
	Jobs(ctx context.Context) ([]deadletters.Job, error)
	// Job returns a job by its id, or deadletters.ErrJobNotFound.
	Job(ctx context.Context, id string) (deadletters.Job, error)
}

// DLQIndex reads the index of dead letters.
type DLQIndex interface {
	// DeadLetterHours counts dead letters by hour and reason, the earliest hour first. First of each
	// group is the start of its hour.
	DeadLetterHours(ctx context.Context, filter deadletters.Filter) ([]deadletters.Group, error)
	// DeadLettersOfJob returns at most `limit` dead letters that a job has handled.
	DeadLettersOfJob(ctx context.Context, source, job string, limit int) ([]deadletters.DeadLetter, error)
}

// FaultScenarios controls the faults that the simulated upstream of a demonstration returns.
type FaultScenarios interface {
	List() []FaultScenario
	Current() string
	Set(ctx context.Context, name string) error
}

// FaultScenario is a named set of faults.
type FaultScenario struct{ Name, Title, Description string }
