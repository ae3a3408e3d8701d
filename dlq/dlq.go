package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// Queue lists, counts, replays and purges the dead letters of all sources. Its methods may be
// called concurrently.
type Queue struct {
	Deps
	runner *runner
}

// maxConcurrentJobs is how many jobs one process runs at a time. A slow job delays other jobs only
// if the process runs maxConcurrentJobs jobs already.
const maxConcurrentJobs = 8

// New returns a Queue. Jobs are processed only while Run runs.
func New(deps Deps) *Queue {
	q := &Queue{Deps: deps}
	q.runner = &runner{Queue: q, metrics: newMetrics(deps.Sources, deps.Metrics), slots: make(chan struct{}, maxConcurrentJobs)}
	return q
}

// Run runs jobs until ctx ends, up to maxConcurrentJobs at a time. Other processes may call Run at the
// same time. Run blocks until its jobs have stopped, but at most for the time shutdownGrace after the
// end of ctx. Another process continues the jobs.
func (q *Queue) Run(ctx context.Context) error { return q.runner.run(ctx) }

// Reasons why a replay leaves a dead letter open.
const (
	RefusedLimit       = "LIMIT"       // the dead letter was replayed schemas.MaxReplays times
	RefusedUndecodable = "UNDECODABLE" // this release can't decode the request
	RefusedGone        = "GONE"        // the record was deleted from the topic
	RefusedInvalid     = "INVALID"     // the configuration has no such facet, or rejects the key
)

// JobSpec is the request to replay or purge all open dead letters that match a filter.
type JobSpec struct {
	Kind   deadletters.JobKind
	Filter deadletters.Filter
	Lane   schemas.Lane // lane in which a replay enqueues
	Rate   float64      // dead letters per second; 0 means unlimited
	Max    int64        // maximum number of dead letters to handle; 0 means all
	Note   string       // why the operator starts the job, for the audit log
}

// Plan is the result of a dry run of a job.
type Plan struct {
	// Total counts the dead letters that match the filter. Count is the number of dead letters that
	// the job would handle. IfReadable is the number of further dead letters that a replay handles
	// if this release can decode them.
	Total      int64 `json:"total"`
	Count      int64 `json:"count"`
	IfReadable int64 `json:"ifReadable,omitempty"`
	// Routes lists the expected treatment of the matching dead letters, by reason and facet.
	Routes []Route `json:"routes"`
	// More is set if there are more than MaxGroups groups. Routes then lacks the dead letters of the
	// smallest groups. Total, Count and IfReadable include the dead letters of all groups.
	More bool `json:"more,omitempty"`
	// Until is the filter's Until or the time of the plan, whichever is earlier. A job with this
	// bound handles no dead letters that are added after the plan.
	Until time.Time `json:"until"`
}

// Route describes the effect of a replay or purge job on the dead letters of one reason and one facet.
type Route struct {
	Reason schemas.DeadLetterReason `json:"reason"`
	Facet  string                   `json:"facet"`
	Count  int64                    `json:"count"`
	// Topic is the topic to which the requests are written; empty for a purge and for dead letters
	// that stay open.
	Topic string `json:"topic,omitempty"`
	// IfReadable is set if the index does not show whether this release can decode the requests.
	// Dead letters that it can't decode stay open.
	IfReadable bool `json:"ifReadable,omitempty"`
	// Refused is the reason why the job will leave the dead letters of this route open, for example
	// LIMIT; empty if the job will replay or purge them.
	Refused string `json:"refused,omitempty"`
}

// MaxGroups is the maximum number of groups that Groups and Plan return.
const MaxGroups = 1000

// maxJobs is the maximum number of jobs that Jobs returns.
const maxJobs = 100

// Plan returns the expected result of a job. It reads only the index, so some of the counted
// records may already be deleted from Kafka.
func (q *Queue) Plan(ctx context.Context, spec JobSpec) (Plan, error) {
	filter := spec.filterAt(time.Now())
	groups, err := q.Groups(ctx, filter)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Routes: []Route{}, Until: filter.Until}
	add := func(r Route) {
		if r.Count == 0 {
			return
		}
		same := func(other Route) bool {
			return other.Reason == r.Reason && other.Facet == r.Facet && other.Topic == r.Topic && other.Refused == r.Refused
		}
		if i := slices.IndexFunc(p.Routes, same); i >= 0 {
			p.Routes[i].Count += r.Count
		} else {
			p.Routes = append(p.Routes, r)
		}
	}
	listed := int64(0)
	for _, g := range groups {
		listed, p.Total = listed+g.Count, g.Totals.All
		if p.Count = p.Total; spec.Kind == deadletters.ReplayJob {
			p.IfReadable = g.Totals.Undecoded
			p.Count -= g.Totals.Undecoded + g.Totals.AtReplayLimit
		}
		r := Route{Reason: g.Reason, Facet: g.Facet, Count: g.Count}
		if spec.Kind == deadletters.PurgeJob {
			add(r)
			continue
		}
		refused := r
		refused.Refused, refused.Count = RefusedLimit, g.AtReplayLimit
		add(refused)
		r.Count -= g.AtReplayLimit
		r.Topic = schemas.RequestTopic(spec.Filter.Source, spec.Lane)
		// A group without a facet has requests that a worker could not decode. This release may be
		// able to decode them.
		r.IfReadable = g.Facet == ""
		add(r)
	}
	p.More = listed < p.Total
	if spec.Max > 0 {
		p.Count = min(p.Count, spec.Max)
		p.IfReadable = min(p.IfReadable, spec.Max-p.Count)
	}
	return p, nil
}

// filterAt returns the filter of a job that is created at the time `now`. It selects only open dead
// letters from before that time.
func (spec JobSpec) filterAt(now time.Time) deadletters.Filter {
	f := spec.Filter
	f.Handled = deadletters.Open
	if now = now.UTC().Truncate(time.Microsecond); f.Until.IsZero() || f.Until.After(now) {
		f.Until = now
	}
	return f
}

// StartJob creates a job and its audit entry, and wakes the processes that run jobs. It returns
// deadletters.ErrReplayRunning if another replay of the source is running.
func (q *Queue) StartJob(ctx context.Context, spec JobSpec, actor string) (deadletters.Job, error) {
	p, err := q.Plan(ctx, spec)
	if err != nil {
		return deadletters.Job{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return deadletters.Job{}, fmt.Errorf("create a job id: %w", err)
	}
	total := p.Total
	if spec.Max > 0 {
		total = min(total, spec.Max)
	}
	now := time.Now().UTC()
	j := deadletters.Job{
		ID: id.String(), Source: spec.Filter.Source, Kind: spec.Kind, Filter: spec.filterAt(p.Until),
		Lane: spec.Lane, Rate: spec.Rate, Max: spec.Max, Note: spec.Note,
		State: deadletters.JobRunning, Total: total, Refused: map[string]int64{},
		Position: deadletters.ID{Partition: -1}, CreatedAt: now, CreatedBy: actor, UpdatedAt: now,
	}
	if spec.Kind == deadletters.PurgeJob {
		j.Lane = ""
	}
	if err := q.Store.CreateJob(ctx, j, auditEntry(j, "started", actor, now)); err != nil {
		return deadletters.Job{}, err
	}
	q.Notifier.WakeAt(ctx, now)
	return j, nil
}

// SetJobState stops or resumes a job and returns its new state. A job that is already in the state
// `to` is returned unchanged. It returns deadletters.ErrJobNotFound for a job that does not exist or is
// done, and deadletters.ErrReplayRunning if another replay of the source is running.
func (q *Queue) SetJobState(ctx context.Context, id string, to deadletters.JobState, actor string) (deadletters.Job, error) {
	j, err := q.Job(ctx, id)
	if err != nil {
		return j, err
	}
	from, action := deadletters.JobRunning, "stopped"
	if to == deadletters.JobRunning {
		from, action = deadletters.JobStopped, "resumed"
	}
	now := time.Now().UTC()
	err = q.Store.SetJobState(ctx, id, from, to, now, auditEntry(j, action, actor, now))
	if j.State == to && errors.Is(err, deadletters.ErrJobNotFound) {
		err = nil // the job has the requested state already
	}
	if errors.Is(err, deadletters.ErrJobNotFound) && to == deadletters.JobRunning && j.State == from {
		err = deadletters.ErrReplayRunning
	}
	if err != nil {
		return j, err
	}
	q.Notifier.WakeAt(ctx, now)
	return q.Store.Job(ctx, id)
}

// auditEntry returns the audit entry of a change of a job. The entry's action consists of the job's
// kind and the parameter `action`, as in replay-started or purge-ended.
func auditEntry(j deadletters.Job, action, actor string, at time.Time) store.AuditEntry {
	kind := map[deadletters.JobKind]string{deadletters.ReplayJob: "replay-", deadletters.PurgeJob: "purge-"}[j.Kind]
	after, err := json.Marshal(struct {
		Job     string             `json:"job"`
		Filter  deadletters.Filter `json:"filter"`
		Lane    schemas.Lane       `json:"lane,omitempty"`
		Rate    float64            `json:"rate,omitempty"`
		Max     int64              `json:"max,omitempty"`
		Total   int64              `json:"total"`
		Done    int64              `json:"done"`
		Refused map[string]int64   `json:"refused,omitempty"`
	}{j.ID, j.Filter, j.Lane, j.Rate, j.Max, j.Total, j.Done, j.Refused})
	if err != nil {
		panic(err) // no error is possible: every field can be encoded as JSON
	}
	return store.AuditEntry{At: at, Actor: actor, Action: kind + action, Source: j.Source, Before: json.RawMessage("{}"), After: after, Note: j.Note}
}

// List returns at most `limit` dead letters that match the filter, newest first. If after.At is set,
// the list continues after the dead letter `after`, the last one of the previous page.
func (q *Queue) List(ctx context.Context, filter deadletters.Filter, after deadletters.DeadLetter, limit int) ([]deadletters.DeadLetter, error) {
	return q.Store.DeadLetters(ctx, filter, after, limit)
}

// Groups counts the dead letters that match the filter by reason, fingerprint and facet, largest
// group first. It returns at most MaxGroups groups.
func (q *Queue) Groups(ctx context.Context, filter deadletters.Filter) ([]deadletters.Group, error) {
	groups, err := q.Store.DeadLetterGroups(ctx, filter, MaxGroups)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", errCountTimeout, err)
	}
	return groups, err
}

// Jobs returns the latest jobs, newest first.
func (q *Queue) Jobs(ctx context.Context) ([]deadletters.Job, error) {
	return q.Store.Jobs(ctx, maxJobs)
}

// Job returns the job with the ID, or deadletters.ErrJobNotFound.
func (q *Queue) Job(ctx context.Context, id string) (deadletters.Job, error) {
	if uuid.Validate(id) != nil {
		return deadletters.Job{}, deadletters.ErrJobNotFound
	}
	return q.Store.Job(ctx, id)
}

// Show reads one dead letter from Kafka. It returns ErrGone if the topic has no record at the ID's
// offset, ErrUnreadable if the record can't be parsed, or an error of the Kafka client.
func (q *Queue) Show(ctx context.Context, id deadletters.ID) (schemas.DeadLetter, error) {
	var result ReadResult
	found := false
	err := q.Topics.ReadDeadLetters(ctx, []deadletters.ID{id}, func(_ deadletters.ID, r ReadResult) { result, found = r, true })
	switch {
	case err != nil:
		return schemas.DeadLetter{}, err
	case !found:
		return schemas.DeadLetter{}, ErrGone
	case result.Err != nil:
		return schemas.DeadLetter{}, fmt.Errorf("%w: %w", ErrUnreadable, result.Err)
	}
	return result.DeadLetter, nil
}

// The errors that Show returns.
var (
	ErrGone       = errors.New("the topic has no record at this offset; it was deleted or never existed")
	ErrUnreadable = errors.New("the record is not a valid dead letter")
)

var errCountTimeout = errors.New("counting the dead letters timed out")
