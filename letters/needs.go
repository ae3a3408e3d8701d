package letters

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Needs are what letters are worked on with.
type Needs struct {
	Store    Store
	Mail     Mail
	Enqueuer Enqueuer
	Bell     Bell
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
	// Letters returns the chosen ones, the newest first, behind one of them unless its time
	// is zero; WalkLetters in the order in which they lie on their topic.
	Letters(ctx context.Context, filter store.LetterFilter, behind store.Letter, limit int) ([]store.Letter, error)
	WalkLetters(ctx context.Context, filter store.LetterFilter, behind store.LetterID, limit int) ([]store.Letter, error)
	// GroupLetters counts them by what went wrong, the most frequent first.
	GroupLetters(ctx context.Context, filter store.LetterFilter, limit int) ([]store.LetterGroup, error)
	// LetterPrefixes returns how far the letters of each partition are handled. Those of young
	// and later are young; an entry that is missing before one of missing or later may yet be
	// written.
	LetterPrefixes(ctx context.Context, topic string, young, missing time.Time) ([]store.LetterPrefix, error)
	// ForgetLetters deletes entries of letters that their topic has no longer.
	ForgetLetters(ctx context.Context, before store.LetterID, limit int) (int, error)
	CreateJob(ctx context.Context, job store.LetterJob, entry store.AuditEntry) error
	Job(ctx context.Context, id string) (store.LetterJob, error)
	Jobs(ctx context.Context, limit int) ([]store.LetterJob, error)
	// HoldJob gives a job of one of the sources, on which nobody works, to the holder until
	// then.
	HoldJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job store.LetterJob, ok bool, err error)
	// NextJob returns when one of theirs may be taken on next; zero if there is none.
	NextJob(ctx context.Context, sources []string) (time.Time, error)
	// AdvanceJob writes how far a job is and which letters were handled, together or not at
	// all, and returns the state in which somebody may have put it meanwhile.
	AdvanceJob(ctx context.Context, job store.LetterJob, handled []store.LetterID, h store.Handling, entry *store.AuditEntry) (store.JobState, error)
	// SwitchJob stops or resumes a job.
	SwitchJob(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error
}

// Mail is the topics on which the letters lie, and those on which they are asked for again.
type Mail interface {
	// Read calls found for each of the letters that its topic has, in their order.
	// They are of one topic, and sorted.
	Read(ctx context.Context, ids []store.LetterID, found func(id store.LetterID, letter Read)) error
	// Asked returns which letters were asked for by a job, by ReplayMark.Of, in records of
	// the topic that were written from the one time to the other.
	Asked(ctx context.Context, topic, job string, from, to time.Time) (map[string]bool, error)
	// Bounds returns where the partitions of a topic start and end.
	Bounds(ctx context.Context, topic string) (map[int32]Bound, error)
	// Cut deletes the records of a topic before an offset of each partition, and returns
	// where the partitions then start.
	Cut(ctx context.Context, topic string, before map[int32]int64) (starts map[int32]int64, err error)
}

// Bound is where a partition starts, and where its next record will lie: offsets.
type Bound struct{ Start, End int64 }

// Read is a letter as its topic has it; Err says why it can't be read.
type Read struct {
	Letter schemas.DeadLetter
	Err    error
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

// Bell wakes who works on jobs.
type Bell interface {
	// Run calls work until ctx ends: at once, when somebody told, when the time has come
	// that it returned, and no later than latest after its last call.
	Run(ctx context.Context, latest time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
	// Tell wakes all processes then, and Wake this one.
	Tell(ctx context.Context, at time.Time)
	Wake(at time.Time)
}

// Source is what is known of one source.
type Source interface {
	// CheckKey returns why there can be no such entity.
	CheckKey(facet, key string) error
	// HasFacet reports whether the configuration has the facet.
	HasFacet(name string) bool
}
