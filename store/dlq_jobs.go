package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/schemas"
)

// JobKind is what a job does with letters.
type JobKind string

// The kinds of jobs.
const (
	ReplayJob JobKind = "REPLAY"
	PurgeJob  JobKind = "PURGE"
)

// JobState says how it goes on with a job.
type JobState string

// The states of a job. One that was stopped may be resumed.
const (
	JobRunning JobState = "RUNNING"
	JobStopped JobState = "STOPPED"
	JobDone    JobState = "DONE"
)

// DLQJob is what is done, or was, about all letters that a filter chooses. One process at
// a time works on it, and any goes on with it.
type DLQJob struct {
	ID     string           `json:"id"`
	Source string           `json:"source"`
	Kind   JobKind          `json:"kind"`
	Filter DeadLetterFilter `json:"filter"`
	// Lane is that of a replay's requests.
	Lane schemas.Lane `json:"lane,omitempty"`
	// Rate is in letters a second, 0: as many as go; Most is in letters, 0: all.
	Rate  float64  `json:"rate,omitempty"`
	Max   int64    `json:"max,omitempty"`
	Note  string   `json:"note,omitempty"`
	State JobState `json:"state"`
	// Total are the letters that were chosen when it was ordered; Done those that were
	// handled, and Refused those that stay open, by why.
	Total   int64            `json:"total"`
	Done    int64            `json:"done"`
	Refused map[string]int64 `json:"refused"`
	// Position is the last letter that was looked at, and ChunkAt when those behind it began to
	// be asked for; zero if none of them can have been.
	Position       DeadLetterID `json:"-"`
	ChunkStartedAt time.Time    `json:"-"`
	// Holder works on it alone until Lease.
	Holder     string    `json:"-"`
	LeaseUntil time.Time `json:"-"`
	// Error is why it waits.
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	CreatedBy string    `json:"createdBy"`
	UpdatedAt time.Time `json:"updatedAt"`
	EndedAt   time.Time `json:"endedAt,omitzero"`
}

// RefusedCount is how many letters it looked at and did not handle.
func (j DLQJob) RefusedCount() (n int64) {
	for _, refused := range j.Refused {
		n += refused
	}
	return n
}

// ErrJobNotFound is returned for a job that there is none of, or none in the state that it must
// have been in. Nothing was written.
var ErrJobNotFound = errors.New("there is no such job, or it has ended")

// ErrReplayRunning is returned for a replay that is to begin, or to go on, while another one of
// its source is running, or was stopped before it is known which letters it asked for: both
// could ask for the same ones. Nothing was written.
var ErrReplayRunning = errors.New("another replay of the source is under way")

// jobNeedsWorker is the condition for jobs that somebody must work on: those that run, and those
// that were stopped in a chunk of which nobody knows yet what was asked for. The indexes of
// the table have it too.
const jobNeedsWorker = `(state = 'RUNNING' OR chunk_started_at <> 0)`

const jobColumns = `id, source, kind, filter, lane, rate, max, note, state, total, done, refused, kafka_partition, kafka_offset, chunk_started_at,
	holder, lease_until, error, created_at, created_by, updated_at, ended_at`

// The queries about jobs.
const (
	// InsertJob takes InsertArgs, and writes no row for a second replay of a source.
	InsertJob = `INSERT INTO dlq_jobs (` + jobColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)
ON CONFLICT DO NOTHING`

	// SelectJob takes an id, SelectJobs the greatest number of rows; the newest come first.
	// Both return what ScanJob takes.
	SelectJob  = `SELECT ` + jobColumns + ` FROM dlq_jobs WHERE id = $1`
	SelectJobs = `SELECT ` + jobColumns + ` FROM dlq_jobs ORDER BY created_at DESC, id DESC LIMIT $1`

	// LeaseJob takes a job's id, the holder, the end of the lease, the lease before and the
	// holder before, and writes a row or none.
	LeaseJob = `UPDATE dlq_jobs SET holder = $2, lease_until = $3 WHERE id = $1 AND ` + jobNeedsWorker + ` AND lease_until = $4 AND holder = $5`

	// UpdateJobProgress takes ProgressArgs, and returns the state that the job now has, or no row if
	// somebody else holds it. Its holder may end a job, and does nothing else to its state:
	// it may not know that it was resumed. A job that was stopped meanwhile stays so and begins no chunk,
	// but what was done of it is done.
	UpdateJobProgress = `UPDATE dlq_jobs SET state = CASE WHEN state = 'RUNNING' AND $3 = 'DONE' THEN 'DONE' ELSE state END,
	done = $4, refused = $5, kafka_partition = $6, kafka_offset = $7,
	chunk_started_at = CASE WHEN ` + jobNeedsWorker + ` THEN $8 ELSE chunk_started_at END, lease_until = $9, error = $10, updated_at = $11,
	ended_at = CASE WHEN state = 'RUNNING' THEN $12 ELSE ended_at END
WHERE id = $1 AND holder = $2 AND state <> 'DONE' RETURNING state`

	// UpdateJobState takes an id, the state before and after, and when. Who resumes a job has it
	// worked on at once, unless its holder still is; beside another replay of its source that
	// lives nothing is written.
	UpdateJobState = `UPDATE dlq_jobs SET state = $3, updated_at = $4 WHERE id = $1 AND state = $2
AND NOT ($3 = 'RUNNING' AND kind = 'REPLAY' AND EXISTS (
	SELECT 1 FROM dlq_jobs o WHERE o.source = dlq_jobs.source AND o.id <> dlq_jobs.id AND o.kind = 'REPLAY'
	AND (o.state = 'RUNNING' OR o.chunk_started_at <> 0)))`
)

// SelectUnleasedJob returns the statement for the job of one of the sources that waits the longest
// for somebody to work on it, as ScanJob takes it; and what the statement takes.
func SelectUnleasedJob(sources []string, now time.Time) (string, []any) {
	among, args := amongSources(sources, []any{toMicros(now)})
	return `SELECT ` + jobColumns + ` FROM dlq_jobs WHERE ` + jobNeedsWorker + ` AND lease_until <= $1 AND ` + among + ` ORDER BY lease_until, id LIMIT 1`, args
}

// SelectNextLeaseEnd returns the statement for when the lease ends of the next job of one of the
// sources that is to be worked on, a row or none; and what the statement takes.
func SelectNextLeaseEnd(sources []string) (string, []any) {
	among, args := amongSources(sources, nil)
	return `SELECT lease_until FROM dlq_jobs WHERE ` + jobNeedsWorker + ` AND ` + among + ` ORDER BY lease_until LIMIT 1`, args
}

// amongSources is the condition that a job is of one of the sources, with its arguments behind
// those that there are. Each is one of them: the two databases have no type for lists in common.
func amongSources(sources []string, args []any) (string, []any) {
	places := []string{"''"} // no source's name
	for _, s := range sources {
		args = append(args, s)
		places = append(places, fmt.Sprint("$", len(args)))
	}
	return "source IN (" + strings.Join(places, ", ") + ")", args
}

// InsertArgs are what InsertJob takes.
func (j DLQJob) InsertArgs() ([]any, error) {
	filter, err := json.Marshal(j.Filter)
	if err != nil {
		return nil, err
	}
	refused, err := json.Marshal(j.Refused)
	if err != nil {
		return nil, err
	}
	return []any{
		j.ID, j.Source, string(j.Kind), string(filter), string(j.Lane), j.Rate, j.Max, toValidText(j.Note), string(j.State), j.Total, j.Done, string(refused),
		j.Position.Partition, j.Position.Offset, toMicros(j.ChunkStartedAt), j.Holder, toMicros(j.LeaseUntil), toValidText(j.Error),
		toMicros(j.CreatedAt), toValidText(j.CreatedBy), toMicros(j.UpdatedAt), toMicros(j.EndedAt),
	}, nil
}

// LeaseArgs are what HoldJob takes for one who takes the job on as it is.
func (j DLQJob) LeaseArgs(holder string, until time.Time) []any {
	return []any{j.ID, holder, toMicros(until), toMicros(j.LeaseUntil), j.Holder}
}

// ProgressArgs are what SaveJobProgress takes.
func (j DLQJob) ProgressArgs() ([]any, error) {
	refused, err := json.Marshal(j.Refused)
	if err != nil {
		return nil, err
	}
	return []any{
		j.ID, j.Holder, string(j.State), j.Done, string(refused), j.Position.Partition, j.Position.Offset, toMicros(j.ChunkStartedAt), toMicros(j.LeaseUntil),
		toValidText(j.Error), toMicros(j.UpdatedAt), toMicros(j.EndedAt),
	}, nil
}

// ScanJob fills the job by scan, which is a row's Scan.
func (j *DLQJob) ScanJob(scan func(...any) error) error {
	var filter, refused []byte
	var chunk, lease, created, updated, ended int64
	err := scan(&j.ID, &j.Source, &j.Kind, &filter, &j.Lane, &j.Rate, &j.Max, &j.Note, &j.State, &j.Total, &j.Done, &refused,
		&j.Position.Partition, &j.Position.Offset, &chunk, &j.Holder, &lease, &j.Error, &created, &j.CreatedBy, &updated, &ended)
	if err != nil {
		return err
	}
	j.Position.Topic = schemas.DeadLetterTopic(j.Source)
	j.ChunkStartedAt, j.LeaseUntil = fromMicros(chunk), fromMicros(lease)
	j.CreatedAt, j.UpdatedAt, j.EndedAt = fromMicros(created), fromMicros(updated), fromMicros(ended)
	j.Refused = nil
	if err := errors.Join(json.Unmarshal(filter, &j.Filter), json.Unmarshal(refused, &j.Refused)); err != nil {
		return fmt.Errorf("job %s: %w", j.ID, err)
	}
	return nil
}
