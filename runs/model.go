package runs

import (
	"context"
	"errors"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store runs transactions in a database.
type Store interface {
	// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
	InTx(ctx context.Context, do func(store.Tx) error) error
}

// Runs reads and changes runs. Its methods may be called concurrently, also in several processes.
type Runs struct{ store Store }

// New returns the Runs of a database.
func New(s Store) *Runs { return &Runs{s} }

var (
	// ErrInvalid is wrapped by the error of an invalid request. A repetition of such a request fails
	// too.
	ErrInvalid = errors.New("invalid run")
	// ErrNotFound is returned if no run has the id.
	ErrNotFound = errors.New("there is no run with this id")
	// ErrKeyReused is returned if a request has the Idempotency-Key of another request.
	ErrKeyReused = errors.New("the Idempotency-Key was used for a run with another body")
	// ErrActive is returned by Retry if another run of the same scope is active.
	ErrActive = errors.New("another run of the same keys is active; wait for its end, or cancel it")
	// ErrNoFailedStep is returned by Retry if the run has no failed step, or has not ended.
	ErrNoFailedStep = errors.New("the run has no failed step to retry")
	// ErrEnded is returned by Cancel if the run has ended.
	ErrEnded = errors.New("the run has ended")
)

// State says whether a run is still running, and if not, how it has ended.
type State string

// The states of a run.
const (
	Running   State = "RUNNING"
	Completed State = "COMPLETED"
	Failed    State = "FAILED"
	Cancelled State = "CANCELLED"
)

// Run is one run as it is stored in the database.
type Run struct {
	ID     string // id of the run (UUIDv7)
	Source string
	Name   string // name of its definition in the configuration
	// Scope identifies the set of keys: the only key, a prefix followed by *, or a hash of several
	// keys. At most one run of a name and scope is active.
	Scope       string
	Keys        int // number of keys
	TriggeredBy string
	Definition  Definition
	State       State
	// Waiting is true if the run waits for the end of the earlier run of its scope.
	Waiting bool
	Attempt int // number of the attempt: 1, and one more after each Retry
	// Since is the start of the run's first attempt. If the entity of a step was fetched after Since,
	// the step is done.
	Since time.Time
	// AttemptAt is the start of the current attempt. If the entity of a step failed after AttemptAt,
	// the step is failed.
	AttemptAt time.Time
	Counts    Counts
	Deadline  time.Time
	// UpdatedAt is the time of the last change of the run or of one of its steps. EndedAt is zero while the run is active.
	CreatedAt, UpdatedAt, EndedAt time.Time
	Error                         string // why the run failed; empty means that it has not failed, or its failed steps are the reason

	started     int // number of OPEN steps that are requested or due
	lastStarted int // highest number of a step that was made due
}

// Counts are the numbers of steps of a run by state.
type Counts struct {
	Total     int `json:"total"`
	Open      int `json:"open"`
	Done      int `json:"done"`
	NotFound  int `json:"notFound"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
}

// Ended reports whether the run has ended.
func (r Run) Ended() bool { return r.State != Running }

// StepState says whether a step is still open, and if not, how it has ended.
type StepState string

// The states of a step.
const (
	StepOpen      StepState = "OPEN"
	StepDone      StepState = "DONE"
	StepNotFound  StepState = "NOT_FOUND"
	StepFailed    StepState = "FAILED"
	StepCancelled StepState = "CANCELLED"
)

// Step is one entity or collection that a run fetches.
type Step struct {
	Number int // The steps of a run have the numbers 1, 2, 3 and so on. They are requested in this order.
	Facet  string
	Key    string
	State  StepState
	// DueAt is when a poller examines the step again. Zero means that the step has ended, or it waits
	// because Definition.Parallel other steps are requested.
	DueAt    time.Time
	Requests int // number of update requests since a worker has last finished one
	EndedAt  time.Time
	Error    string // why the step failed; empty means that it has not failed
	// fan is the position of the last item for which steps were added. It is zero before the first
	// item.
	fan fanPosition
}

// fanPosition is the position of an item among the items of its collection. The items are ordered by
// their last changes.
type fanPosition struct {
	version int64
	item    string
}

// StepEnd says how a step of a run has ended.
type StepEnd struct {
	Number int
	State  StepState // any state except StepOpen
	Error  string    // why the step failed; empty means that it has not failed
}

// Ref identifies a step by its run and its entity.
type Ref struct {
	Run    string
	Entity schemas.Entity
}

// maxErrorBytes is the maximum length of a stored error.
const maxErrorBytes = 1000

func cut(text string, bytes int) string {
	if len(text) <= bytes {
		return text
	}
	for bytes > 0 && text[bytes]&0xC0 == 0x80 {
		bytes--
	}
	return text[:bytes]
}
