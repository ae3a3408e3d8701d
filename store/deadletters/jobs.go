package deadletters

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// JobKind is the operation of a job: replay or purge.
type JobKind string

// Kinds of jobs.
const (
	ReplayJob JobKind = "REPLAY"
	PurgeJob  JobKind = "PURGE"
)

// JobState is the state of a job. The package documentation of dlq has the transitions.
type JobState string

// States of a job. A stopped job may be resumed.
const (
	JobRunning JobState = "RUNNING"
	JobStopped JobState = "STOPPED"
	JobDone    JobState = "DONE"
)

// Job is a replay or purge of all dead letters that a filter selects. One process at a time, the
// lease holder, runs the job. After the lease has ended, any process may continue the job.
type Job struct {
	ID     string  `json:"id"`
	Source string  `json:"source"`
	Kind   JobKind `json:"kind"`
	Filter Filter  `json:"filter"`
	// Lane is the lane in which a replay enqueues its requests.
	Lane schemas.Lane `json:"lane,omitempty"`
	// Rate is the maximum number of dead letters per second; 0 means unlimited. Max is the number of
	// dead letters to handle; 0 means all.
	Rate  float64  `json:"rate,omitempty"`
	Max   int64    `json:"max,omitempty"`
	Note  string   `json:"note,omitempty"`
	State JobState `json:"state"`
	// Total is the number of dead letters that matched when the job was created. Done is the number
	// of handled dead letters. Refused counts the processed dead letters that stay open, by the
	// reason why they were refused.
	Total   int64            `json:"total"`
	Done    int64            `json:"done"`
	Refused map[string]int64 `json:"refused"`
	// Position is the last dead letter that the job has processed. ChunkStartedAt is when the job
	// began to enqueue the next chunk (a batch of dead letters after Position); zero if no chunk is
	// in flight.
	Position       ID        `json:"-"`
	ChunkStartedAt time.Time `json:"-"`
	// Lease is the job's current or last lease.
	Lease JobLease `json:"-"`
	// Error is the reason why the job can't continue at the moment.
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	UpdatedAt time.Time `json:"updatedAt"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
}

// JobLease is the exclusive right of one process, the holder, to run a job until a time.
type JobLease struct {
	Holder string
	Until  time.Time
}

// RefusedCount returns the number of processed dead letters that stay open.
func (j Job) RefusedCount() (n int64) {
	for _, refused := range j.Refused {
		n += refused
	}
	return n
}

// ErrJobNotFound is returned for a job that does not exist or is not in the expected state.
// Nothing was written.
var ErrJobNotFound = errors.New("the job does not exist or is done")

// ErrReplayRunning is returned when a replay is created or resumed while another replay of its
// source is active: it is running, or is stopped with a chunk in flight. Both replays could
// enqueue the same dead letters. Nothing was written.
var ErrReplayRunning = errors.New("another replay of the source is running")

// jobNeedsWorker selects the jobs that need a worker: running jobs, and stopped jobs with a chunk in
// flight. The enqueued requests of such a chunk must still be counted. A replay that needs a worker is
// active. Indexes of the table contain the same condition.
const jobNeedsWorker = `(state = 'RUNNING' OR chunk_started_at <> 0)`

const jobColumns = `id, source, kind, filter, lane, rate, max, note, state, total, done, refused, kafka_partition, kafka_offset, chunk_started_at,
	holder, lease_until, error, created_at, created_by, updated_at, ended_at`

// Statements for jobs, shared by both databases.
const (
	// InsertJob inserts a job. It writes no row if the job is a replay and another replay of its
	// source is active (jobNeedsWorker). Arguments: Job.InsertArgs.
	InsertJob = `INSERT INTO dlq_jobs (` + jobColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT DO NOTHING`

	// SelectJob returns one job, and SelectJobs the newest jobs first, with the columns of ScanJob.
	// Argument of SelectJob: id; of SelectJobs: limit.
	SelectJob  = `SELECT ` + jobColumns + ` FROM dlq_jobs WHERE id = $1`
	SelectJobs = `SELECT ` + jobColumns + ` FROM dlq_jobs ORDER BY created_at DESC, id DESC LIMIT $1`

	// LeaseJob changes the holder and the end of a job's lease. It writes no row if another process
	// changed the lease since it was read. Arguments: id, new holder, new end, former end, former
	// holder.
	LeaseJob = `UPDATE dlq_jobs SET holder = $2, lease_until = $3 WHERE id = $1 AND ` + jobNeedsWorker + ` AND lease_until = $4 AND holder = $5`

	// UpdateJobProgress writes the progress of a job. It returns the job's state, or no row if
	// another process holds the lease. The holder may only change the state from RUNNING to DONE,
	// because it may not know that the job was stopped or resumed. A stopped job starts no further
	// chunk, but the results of its last chunk are written. Arguments: ProgressArgs.
	UpdateJobProgress = `UPDATE dlq_jobs SET state = CASE WHEN state = 'RUNNING' AND $3 = 'DONE' THEN 'DONE' ELSE state END,
	done = $4, refused = $5, kafka_partition = $6, kafka_offset = $7,
	chunk_started_at = CASE WHEN ` + jobNeedsWorker + ` THEN $8 ELSE chunk_started_at END, lease_until = $9, error = $10, updated_at = $11,
	ended_at = CASE WHEN state = 'RUNNING' THEN $12 ELSE ended_at END
WHERE id = $1 AND holder = $2 AND state <> 'DONE' RETURNING state`

	// UpdateJobState changes the state of a job. It writes no row if the job is not in the expected
	// state. It also writes no row if a replay is resumed while another replay of its source is
	// active (jobNeedsWorker). The lease is unchanged: a resumed job can be leased at once unless
	// its former holder still has the lease. Arguments: id, expected state, new state, time.
	UpdateJobState = `UPDATE dlq_jobs SET state = $3, updated_at = $4 WHERE id = $1 AND state = $2
AND NOT ($3 = 'RUNNING' AND kind = 'REPLAY' AND EXISTS (
	SELECT 1 FROM dlq_jobs o WHERE o.source = dlq_jobs.source AND o.id <> dlq_jobs.id AND o.kind = 'REPLAY'
	AND (o.state = 'RUNNING' OR o.chunk_started_at <> 0)))`
)

// SelectUnleasedJob returns the statement, and its arguments, that selects one job of the given
// sources. The job must need a worker, and its lease must have expired. If several jobs match, the
// statement selects the job whose lease expired first. The statement returns the columns of
// ScanJob.
func SelectUnleasedJob(sources []string, now time.Time) (string, []any) {
	among, args := amongSources(sources, []any{store.ToMicros(now)})
	return `SELECT ` + jobColumns + ` FROM dlq_jobs WHERE ` + jobNeedsWorker + ` AND lease_until <= $1 AND ` + among + ` ORDER BY lease_until, id LIMIT 1`, args
}

// SelectNextLeaseEnd returns the statement, and its arguments, that selects the earliest end of a
// lease. It examines the jobs of the given sources that need a worker, and returns one row or
// none.
func SelectNextLeaseEnd(sources []string) (string, []any) {
	among, args := amongSources(sources, nil)
	return `SELECT lease_until FROM dlq_jobs WHERE ` + jobNeedsWorker + ` AND ` + among + ` ORDER BY lease_until LIMIT 1`, args
}

// amongSources returns the condition that a job belongs to one of the sources, and `args` with the
// sources appended. Each source is one argument, because PostgreSQL and SQLite have no common array
// type.
func amongSources(sources []string, args []any) (string, []any) {
	placeholders := []string{"''"} // '' is no source's name; it keeps IN () valid without sources
	for _, s := range sources {
		args = append(args, s)
		placeholders = append(placeholders, fmt.Sprint("$", len(args)))
	}
	return "source IN (" + strings.Join(placeholders, ", ") + ")", args
}

// InsertArgs returns the arguments of InsertJob.
func (j Job) InsertArgs() ([]any, error) {
	filter, err := json.Marshal(j.Filter)
	if err != nil {
		return nil, err
	}
	refused, err := json.Marshal(j.Refused)
	if err != nil {
		return nil, err
	}
	return []any{
		j.ID, j.Source, string(j.Kind), string(filter), string(j.Lane), j.Rate, j.Max, store.ValidText(j.Note), string(j.State), j.Total, j.Done, string(refused),
		j.Position.Partition, j.Position.Offset, store.ToMicros(j.ChunkStartedAt), j.Lease.Holder, store.ToMicros(j.Lease.Until), store.ValidText(j.Error),
		store.ToMicros(j.CreatedAt), store.ValidText(j.CreatedBy), store.ToMicros(j.UpdatedAt), store.ToMicros(j.EndedAt),
	}, nil
}

// LeaseArgs returns the arguments of LeaseJob. The Lease of the job must be the value that was read
// from the database.
func (j Job) LeaseArgs(next JobLease) []any {
	return []any{j.ID, next.Holder, store.ToMicros(next.Until), store.ToMicros(j.Lease.Until), j.Lease.Holder}
}

// ProgressArgs returns the arguments of UpdateJobProgress.
func (j Job) ProgressArgs() ([]any, error) {
	refused, err := json.Marshal(j.Refused)
	if err != nil {
		return nil, err
	}
	return []any{
		j.ID, j.Lease.Holder, string(j.State), j.Done, string(refused), j.Position.Partition, j.Position.Offset, store.ToMicros(j.ChunkStartedAt), store.ToMicros(j.Lease.Until),
		store.ValidText(j.Error), store.ToMicros(j.UpdatedAt), store.ToMicros(j.EndedAt),
	}, nil
}

// ScanJob reads the job from a row.
func (j *Job) ScanJob(scan func(...any) error) error {
	var filter, refused []byte
	var chunk, lease, created, updated, ended int64
	err := scan(&j.ID, &j.Source, &j.Kind, &filter, &j.Lane, &j.Rate, &j.Max, &j.Note, &j.State, &j.Total, &j.Done, &refused,
		&j.Position.Partition, &j.Position.Offset, &chunk, &j.Lease.Holder, &lease, &j.Error, &created, &j.CreatedBy, &updated, &ended)
	if err != nil {
		return err
	}
	j.Position.Topic = schemas.DeadLetterTopic(j.Source)
	j.ChunkStartedAt, j.Lease.Until = store.FromMicros(chunk), store.FromMicros(lease)
	j.CreatedAt, j.UpdatedAt, j.EndedAt = store.FromMicros(created), store.FromMicros(updated), store.FromMicros(ended)
	j.Refused = nil
	if err := errors.Join(json.Unmarshal(filter, &j.Filter), json.Unmarshal(refused, &j.Refused)); err != nil {
		return fmt.Errorf("decode job %s: %w", j.ID, err)
	}
	return nil
}
