package dlq

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// Deps are the dependencies of a Queue.
type Deps struct {
	Store    Store
	Topics   Topics
	Enqueuer Enqueuer
	Notifier Notifier
	// Sources are the sources in the configuration of this process, by name. This process runs no jobs
	// of other sources. Such jobs wait for a process that has the source in its configuration.
	Sources map[string]Source
	// Process is a unique name of this process, for the leases of jobs.
	Process string
	// Actor returns the name of the caller, for the audit log.
	Actor   func(*http.Request) string
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Store is the database: the index of dead letters, and the jobs.
type Store interface {
	Index
	Pruner
	JobStore
	JobLeases
}

// Index reads the rows of dead letters.
type Index interface {
	// DeadLetters returns at most `limit` matching dead letters, newest first. If after.At is set, the
	// list continues after the dead letter `after`, the last one of the previous page.
	DeadLetters(ctx context.Context, filter deadletters.Filter, after deadletters.DeadLetter, limit int) ([]deadletters.DeadLetter, error)
	// DeadLettersByOffset returns at most `limit` matching dead letters in the order of partition and
	// offset, starting after the given position.
	DeadLettersByOffset(ctx context.Context, filter deadletters.Filter, after deadletters.ID, limit int) ([]deadletters.DeadLetter, error)
	// DeadLetterGroups counts matching dead letters by reason, fingerprint and facet, largest group
	// first.
	DeadLetterGroups(ctx context.Context, filter deadletters.Filter, limit int) ([]deadletters.Group, error)
}

// Pruner deletes the rows of dead letters that Kafka no longer has.
type Pruner interface {
	// HandledPrefixes returns, for each partition of a topic, the range of offsets from the
	// partition's start in which all dead letters are handled. The range ends before a dead letter
	// from the time `recent` or later, even if it is handled. The range also ends before an offset
	// without a row in dead_letters, if the following row is from the time `missing` or later: then
	// the missing row may still be written.
	HandledPrefixes(ctx context.Context, topic string, recent, missing time.Time) ([]deadletters.HandledPrefix, error)
	// DeleteDeadLettersBefore deletes at most `limit` rows of dead letters with an offset below the
	// given offset, and returns how many it deleted.
	DeleteDeadLettersBefore(ctx context.Context, before deadletters.ID, limit int) (int, error)
}

// JobStore keeps jobs.
type JobStore interface {
	// CreateJob writes a job and its audit entry in one transaction.
	CreateJob(ctx context.Context, job deadletters.Job, entry store.AuditEntry) error
	Job(ctx context.Context, id string) (deadletters.Job, error)
	Jobs(ctx context.Context, limit int) ([]deadletters.Job, error)
	// SetJobState changes a job's state from `before` to `after` and writes the audit entry in one
	// transaction.
	SetJobState(ctx context.Context, id string, before, after deadletters.JobState, at time.Time, entry store.AuditEntry) error
}

// JobLeases lets one process at a time run a job.
type JobLeases interface {
	// LeaseJob leases one job of the given sources to `holder` until the given time. The job must need
	// a worker and have no valid lease. A job needs a worker if it is running or has a chunk in
	// flight. `ok` is false if no such job exists.
	LeaseJob(ctx context.Context, holder string, sources []string, now, until time.Time) (job deadletters.Job, ok bool, err error)
	// NextLeaseEnd returns the earliest time at which a job of one of the sources can be leased;
	// zero if no job needs a worker.
	NextLeaseEnd(ctx context.Context, sources []string) (time.Time, error)
	// SaveJobProgress writes the job's progress and the outcomes of its dead letters in one
	// transaction. It returns the job's stored state, which an operator may have changed since the
	// job was read.
	SaveJobProgress(ctx context.Context, job deadletters.Job, handled []deadletters.ID, d deadletters.Disposition, entry *store.AuditEntry) (deadletters.JobState, error)
}

// Topics reads and deletes records of dead-letter topics, and reads request topics.
type Topics interface {
	// ReadDeadLetters reads the given dead letters, which must be sorted and of one topic. It calls
	// `found` in the order of `ids`, for each dead letter that the topic still has.
	ReadDeadLetters(ctx context.Context, ids []deadletters.ID, found func(id deadletters.ID, r ReadResult)) error
	// EnqueuedByJob reads the requests that a job wrote to the request topic between two times. It
	// returns the dead letters of these requests as partition:offset (ReplayMark.Of).
	EnqueuedByJob(ctx context.Context, topic, job string, from, to time.Time) (map[string]bool, error)
	// Bounds returns the start and end offsets of a topic's partitions.
	Bounds(ctx context.Context, topic string) (map[int32]PartitionBounds, error)
	// DeleteBefore deletes, in each partition, the records before the given offset. It returns the
	// new start offsets of all partitions.
	DeleteBefore(ctx context.Context, topic string, before map[int32]int64) (starts map[int32]int64, err error)
}

// PartitionBounds are the offset of a partition's first record and the offset of its next record.
type PartitionBounds struct{ Start, End int64 }

// ReadResult is a record of a dead-letter topic. Err is set if the record can't be parsed.
type ReadResult struct {
	DeadLetter schemas.DeadLetter
	Err        error
}

// ReplayRequest is the request of a dead letter that is enqueued again.
type ReplayRequest struct {
	Request     schemas.UpdateRequest // the update request, unchanged from the dead letter
	Lane        schemas.Lane
	TraceParent string
	Mark        schemas.ReplayMark
}

// Enqueuer publishes requests to the request topics of their sources.
type Enqueuer interface {
	// Enqueue publishes each request and waits for the broker's ack. It returns one error per
	// request, in the same order. The error is nil if the request was acknowledged, or if another
	// request in flight covers it.
	Enqueue(ctx context.Context, all []ReplayRequest) []error
}

// Notifier calls the job loop when there is work.
type Notifier interface {
	// Run calls `work` until ctx ends: immediately, after each wake-up, at the time `next` that `work`
	// returned, and at the latest maxDelay after the previous call.
	Run(ctx context.Context, maxDelay time.Duration, work func(ctx context.Context, now time.Time) (next time.Time, err error)) error
	// WakeAt wakes the loops of all processes at the given time.
	WakeAt(ctx context.Context, at time.Time)
	// WakeLocal wakes the loop of this process only.
	WakeLocal(at time.Time)
}

// Source is the configuration of one source.
type Source interface {
	// CheckKey returns an error if the source's configuration rejects the facet or the key.
	CheckKey(facet, key string) error
	// HasFacet reports whether the source has the facet.
	HasFacet(name string) bool
}
