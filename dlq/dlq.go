// Package dlq is what operators do with dead letters: they list and count them by the
// index in the database, read single ones from Kafka, and have all that a filter chooses
// replayed or purged, by jobs that run in the query services.
//
// Invariants of a job:
//   - It is worked on by the process that holds its lease, and by no other. Which letters it
//     handled and how far it is are written in one transaction (Store.SaveJobProgress). Leases are
//     by the clocks of hosts, which must agree within half of onTheWay.
//   - One replay of a source runs at a time: two could choose the same letters. One that was
//     stopped counts until it is known which it asked for: it is held for that too.
//   - It chooses letters of before it was ordered, and passes over those that died by it.
//   - A letter is asked for once. Before the first of a chunk is, the job says when
//     (DLQJob.ChunkAt). Who goes on with it looks on the topic which of them were: each
//     request carries the job and the letter (schemas.ReplayMark). Its holder asks for none
//     when its chunk's time is over, so that nothing comes behind that look.
//   - A purge may choose what a replay is asking for: both count it as done, and the index
//     names the one that said so first.
//   - A letter that could not be asked for stays open and is counted by why, once: the job's
//     position never passes one of which nothing is known yet.
//   - What is purged is deleted from Kafka only where everything before it is handled too,
//     and has an entry or will get none: offsets that the index passes over hold it up for a
//     day, and a topic that was made anew until its new letters lie behind the old entries.
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
)

// Queue is what can be done with dead letters.
type Queue struct {
	Deps
	metrics *metrics
	slots   chan struct{} // for the jobs that are worked on here
	// stopping is closed when Run is to end.
	stopping <-chan struct{}
}

// maxConcurrentJobs are worked on by one process: a slow one must not keep others waiting.
const maxConcurrentJobs = 8

// New returns what can be done with letters. Run works on jobs.
func New(deps Deps) *Queue {
	return &Queue{Deps: deps, metrics: newMetrics(deps.Sources, deps.Metrics), slots: make(chan struct{}, maxConcurrentJobs)}
}

// Why a letter stays open.
const (
	RefusedLimit       = "LIMIT"       // it was replayed as often as may be
	RefusedUndecodable = "UNDECODABLE" // this release can't read its request
	RefusedGone        = "GONE"        // its topic has it no longer
	RefusedInvalid     = "INVALID"     // the configuration has no such facet, or it takes no such key
)

// JobSpec is what somebody wants to be done with all letters that a filter chooses.
type JobSpec struct {
	Kind   store.JobKind
	Filter store.DeadLetterFilter
	Lane   schemas.Lane
	Rate   float64 // letters a second; 0: as many as go
	Max    int64   // letters; 0: all
	Note   string
}

// Plan is what an order would do.
type Plan struct {
	// Total are the letters that it chooses, and Count those of them that it would handle.
	// IfReadable are those besides that it would handle if this release can read them.
	Total      int64 `json:"total"`
	Count      int64 `json:"count"`
	IfReadable int64 `json:"ifReadable,omitempty"`
	// Routes are what would become of which of them.
	Routes []Route `json:"routes"`
	// More: there are more kinds of them than Routes have; the counts are of all.
	More bool `json:"more,omitempty"`
	// Until is that of the order, or now: an order until then chooses these letters, and
	// none that died while somebody thought about it.
	Until time.Time `json:"until"`
	// Groups are those that it chooses, by what went wrong.
	Groups []store.DeadLetterGroup `json:"-"`
}

// Route is where letters of one kind would go.
type Route struct {
	Reason schemas.DeadLetterReason `json:"reason"`
	Facet  string                   `json:"facet"`
	Count  int64                    `json:"count"`
	// Topic is where they are asked for; empty for a purge and for those that stay open.
	Topic string `json:"topic,omitempty"`
	// IfReadable: they go there if this release can read them, which only the letters
	// themselves tell; else they stay open.
	IfReadable bool `json:"ifReadable,omitempty"`
	// Refused says why they stay open.
	Refused string `json:"refused,omitempty"`
}

// MaxGroups bounds how many kinds of letters are told apart: there may be more than so many
// groups.
const MaxGroups = 1000

// maxJobs is how many jobs are shown.
const maxJobs = 100

// Plan returns what an order would do, by the index alone. It is not known there which
// letters their topic still has.
func (l *Queue) Plan(ctx context.Context, o JobSpec) (Plan, error) {
	chosen := o.filterAt(time.Now())
	groups, err := l.Groups(ctx, chosen)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Routes: []Route{}, Until: chosen.Until, Groups: groups}
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
	shown := int64(0)
	for _, g := range groups {
		shown, p.Total = shown+g.Count, g.Totals.All
		if p.Count = p.Total; o.Kind == store.ReplayJob {
			p.IfReadable = g.Totals.Undecoded
			p.Count -= g.Totals.Undecoded + g.Totals.AtReplayLimit
		}
		r := Route{Reason: g.Reason, Facet: g.Facet, Count: g.Count}
		if o.Kind == store.PurgeJob {
			add(r)
			continue
		}
		spent := r
		spent.Refused, spent.Count = RefusedLimit, g.AtReplayLimit
		add(spent)
		r.Count -= g.AtReplayLimit
		r.Topic = schemas.RequestTopic(o.Filter.Source, o.Lane)
		r.IfReadable = g.Facet == "" // whoever buried them could not
		add(r)
	}
	p.More = shown < p.Total
	if o.Max > 0 {
		p.Count = min(p.Count, o.Max)
		p.IfReadable = min(p.IfReadable, o.Max-p.Count)
	}
	return p, nil
}

// filterAt is the filter of an order that is given now.
func (o JobSpec) filterAt(now time.Time) store.DeadLetterFilter {
	f := o.Filter
	f.Handled = store.OpenDeadLetters
	if now = now.UTC().Truncate(time.Microsecond); f.Until.IsZero() || f.Until.After(now) {
		f.Until = now
	}
	return f
}

// StartJob orders a job in the name of an actor. It is worked on by a process that runs jobs.
func (l *Queue) StartJob(ctx context.Context, o JobSpec, actor string) (store.DLQJob, error) {
	p, err := l.Plan(ctx, o)
	if err != nil {
		return store.DLQJob{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return store.DLQJob{}, fmt.Errorf("make an id: %w", err)
	}
	total := p.Total
	if o.Max > 0 {
		total = min(total, o.Max)
	}
	now := time.Now().UTC()
	j := store.DLQJob{
		ID: id.String(), Source: o.Filter.Source, Kind: o.Kind, Filter: o.filterAt(p.Until), Lane: o.Lane, Rate: o.Rate, Max: o.Max, Note: o.Note,
		State: store.JobRunning, Total: total, Refused: map[string]int64{},
		Position: store.DeadLetterID{Partition: -1}, CreatedAt: now, CreatedBy: actor, UpdatedAt: now,
	}
	if o.Kind == store.PurgeJob {
		j.Lane = ""
	}
	if err := l.Store.CreateJob(ctx, j, auditEntry(j, "started", actor, now)); err != nil {
		return store.DLQJob{}, err
	}
	l.Notifier.WakeAt(ctx, now)
	return j, nil
}

// SetJobState stops or resumes a job, and returns it as it then is.
func (l *Queue) SetJobState(ctx context.Context, id string, to store.JobState, actor string) (store.DLQJob, error) {
	j, err := l.Job(ctx, id)
	if err != nil {
		return j, err
	}
	from, did := store.JobRunning, "stopped"
	if to == store.JobRunning {
		from, did = store.JobStopped, "resumed"
	}
	now := time.Now().UTC()
	err = l.Store.SetJobState(ctx, id, from, to, now, auditEntry(j, did, actor, now))
	if j.State == to && errors.Is(err, store.ErrJobNotFound) {
		err = nil // it is so already
	}
	if errors.Is(err, store.ErrJobNotFound) && to == store.JobRunning && j.State == from {
		err = store.ErrReplayRunning
	}
	if err != nil {
		return j, err
	}
	l.Notifier.WakeAt(ctx, now)
	return l.Store.Job(ctx, id)
}

// auditEntry is what the audit says of a job, by its kind: replay-started, purge-ended.
func auditEntry(j store.DLQJob, did, actor string, at time.Time) store.AuditEntry {
	kind := map[store.JobKind]string{store.ReplayJob: "replay-", store.PurgeJob: "purge-"}[j.Kind]
	after, err := json.Marshal(struct {
		Job     string                 `json:"job"`
		Filter  store.DeadLetterFilter `json:"filter"`
		Lane    schemas.Lane           `json:"lane,omitempty"`
		Rate    float64                `json:"rate,omitempty"`
		Most    int64                  `json:"max,omitempty"`
		Total   int64                  `json:"total"`
		Done    int64                  `json:"done"`
		Refused map[string]int64       `json:"refused,omitempty"`
	}{j.ID, j.Filter, j.Lane, j.Rate, j.Max, j.Total, j.Done, j.Refused})
	if err != nil {
		panic(err) // it is of our own types
	}
	return store.AuditEntry{At: at, Actor: actor, Action: kind + did, Source: j.Source, Before: json.RawMessage("{}"), After: after, Note: j.Note}
}

// List returns the chosen letters, the newest first, behind one of them unless its time is
// zero.
func (l *Queue) List(ctx context.Context, filter store.DeadLetterFilter, behind store.DeadLetter, limit int) ([]store.DeadLetter, error) {
	return l.Store.DeadLetters(ctx, filter, behind, limit)
}

// Groups counts the chosen letters by what went wrong, the most frequent first.
func (l *Queue) Groups(ctx context.Context, filter store.DeadLetterFilter) ([]store.DeadLetterGroup, error) {
	groups, err := l.Store.DeadLetterGroups(ctx, filter, MaxGroups)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", errCountTimeout, err)
	}
	return groups, err
}

// Jobs returns the newest jobs, the newest first.
func (l *Queue) Jobs(ctx context.Context) ([]store.DLQJob, error) {
	return l.Store.Jobs(ctx, maxJobs)
}

// Job returns a job, or store.ErrJobNotFound.
func (l *Queue) Job(ctx context.Context, id string) (store.DLQJob, error) {
	if uuid.Validate(id) != nil {
		return store.DLQJob{}, store.ErrJobNotFound
	}
	return l.Store.Job(ctx, id)
}

// Show reads one letter. Its errors are ErrGone, ErrUnreadable, or that Kafka does not answer.
func (l *Queue) Show(ctx context.Context, id store.DeadLetterID) (schemas.DeadLetter, error) {
	var read ReadResult
	there := false
	err := l.Topics.ReadDeadLetters(ctx, []store.DeadLetterID{id}, func(_ store.DeadLetterID, r ReadResult) { read, there = r, true })
	switch {
	case err != nil:
		return schemas.DeadLetter{}, err
	case !there:
		return schemas.DeadLetter{}, ErrGone
	case read.Err != nil:
		return schemas.DeadLetter{}, fmt.Errorf("%w: %w", ErrUnreadable, read.Err)
	}
	return read.DeadLetter, nil
}

// Why a letter can't be shown.
var (
	ErrGone       = errors.New("the topic does not have the letter any more")
	ErrUnreadable = errors.New("the record can't be read as a dead letter")
)

var errCountTimeout = errors.New("the letters could not be counted in time")
