package dlq

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Deps are what letters are worked on with.
type Deps struct {
	Store    Store
	Topics   Topics
	Enqueuer Enqueuer
	Notifier Notifier
	// Sources are those whose letters there are, by name.
	Sources map[string]Source
	// Process names this one among those that work on jobs.
	Process string
	// Actor names who asks, for the audit.
	Actor   func(*http.Request) string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Store keeps the index of letters, and the jobs.
type Store interface {
	// DeadLetters returns the chosen ones, the newest first, behind one of them unless its time
	// is zero; DeadLettersByOffset in the order in which they lie on their topic.
	DeadLetters(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetter, limit int) ([]store.DeadLetter, error)
	DeadLettersByOffset(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetterID, limit int) ([]store.DeadLetter, error)
	// DeadLetterGroups counts them by what went wrong, the most frequent first.
	DeadLetterGroups(ctx context.Context, filter store.DeadLetterFilter, limit int) ([]store.DeadLetterGroup, error)
	// HandledPrefixes returns how far the letters of each partition are handled. Those of young
	// and later are young; an entry that is missing before one of missing or later may yet be
	// written.
	HandledPrefixes(ctx context.Context, topic string, young, missing time.Time) ([]store.HandledPrefix, error)
	// DeleteDeadLettersBefore deletes entries of letters that their topic has no longer.
	DeleteDeadLettersBefore(ctx context.Context, before store.DeadLetterID, limit int) (int, error)
	CreateJob(ctx context.Context, job store.DLQJob, entry store.AuditEntry) error
	Job(ctx context.Context, id string) (store.DLQJob, error)
	Jobs(ctx context.Context, limit int) ([]store.DLQJob, error)
	// LeaseJob gives a job of one of the sources, on which nobody works, to the holder until
	// then.
	LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.DLQJob, ok bool, err error)
	// NextLeaseEnd returns when one of theirs may be taken on next; zero if there is none.
	NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error)
	// SaveJobProgress writes how far a job is and which letters were handled, together or not at
	// all, and returns the state in which somebody may have put it meanwhile.
	SaveJobProgress(ctx context.Context, job store.DLQJob, handled []store.DeadLetterID, h store.Disposition, entry *store.AuditEntry) (store.JobState, error)
	// SetJobState stops or resumes a job.
	SetJobState(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error
}

// Topics is the topics on which the letters lie, and those on which they are asked for again.
type Topics interface {
	// ReadDeadLetters calls found for each of the letters that its topic has, in their order.
	// They are of one topic, and sorted.
	ReadDeadLetters(ctx context.Context, ids []store.DeadLetterID, found func(id store.DeadLetterID, letter ReadResult)) error
	// EnqueuedByJob returns which letters were asked for by a job, by ReplayMark.Of, in records of
	// the topic that were written from the one time to the other.
	EnqueuedByJob(ctx context.Context, topic, job string, from, to time.Time) (map[string]bool, error)
	// Bounds returns where the partitions of a topic start and end.
	Bounds(ctx context.Context, topic string) (map[int32]PartitionBounds, error)
	// DeleteBefore deletes the records of a topic before an offset of each partition, and returns
	// where the partitions then start.
	DeleteBefore(ctx context.Context, topic string, before map[int32]int64) (starts map[int32]int64, err error)
}

// PartitionBounds is where a partition starts, and where its next record will lie: offsets.
type PartitionBounds struct{ Start, End int64 }

// ReadResult is a letter as its topic has it; Err says why it can't be read.
type ReadResult struct {
	DeadLetter schemas.DeadLetter
	Err        error
}

// ReplayRequest is one request that is asked for again.
type ReplayRequest struct {
	Request     schemas.UpdateRequest // the letter's
	Lane        schemas.Lane
	TraceParent string
	Mark        schemas.ReplayMark
}

// Enqueuer is where requests are asked for.
type Enqueuer interface {
	// Enqueue asks for each, and returns, in their order, nil for those that Kafka has, or which
	// a request of somebody else covers, and otherwise why not.
	Enqueue(ctx context.Context, all []ReplayRequest) []error
}

// Notifier wakes who works on jobs.
type Notifier interface {
	// Run calls work until ctx ends: at once, when somebody told, when the time has come
	// that it returned, and no later than latest after its last call.
	Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
	// WakeAt wakes all processes then, and Wake this one.
	WakeAt(ctx context.Context, at time.Time)
	WakeLocal(at time.Time)
}

// Source is what is known of one source.
type Source interface {
	// CheckKey returns why there can be no such entity.
	CheckKey(facet, key string) error
	// HasFacet reports whether the configuration has the facet.
	HasFacet(name string) bool
}
