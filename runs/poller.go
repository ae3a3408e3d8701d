package runs

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

const (
	// lease is how long a poller waits for the answer to the first request of a page. Then it requests
	// the page again. If the record of the first request is read after all, it causes no second call.
	lease = time.Minute
	// coveredRecheck is the time until a poller examines a step again if the step's own request was not
	// published: another update request covers it, or Redis or Kafka failed. The worker of the other
	// request does not make the step due.
	coveredRecheck = 5 * time.Second
	// maxClaim is the maximum number of steps in one claim. `fanItems` is the maximum number of items
	// for which one transaction adds steps.
	maxClaim = 256
	fanItems = 500
	// maxSleep is the maximum time between two claims. If the wake-up for a new run is lost, a poller
	// finds the run after this time.
	maxSleep = 10 * time.Second
)

// Channel returns the Redis channel that wakes the pollers of a source.
func Channel(source string) string { return "runs:" + source }

// Request is the request of the next page of a step's entity.
type Request struct {
	Ref
	Page  string // schemas.UpdateRequest.Page; empty means the first page, or that the entity is no collection
	Floor int64  // version of the stored snapshot; 0 means none
}

// Enqueued says whether a Request of a step will be executed, and by which record.
type Enqueued int

// The values of Enqueued.
const (
	NotEnqueued Enqueued = iota // Redis or Kafka has failed, so nothing was enqueued
	Published                   // Kafka has acknowledged the record of the request
	Covered                     // the record of another update request covers the request
)

// Enqueuer publishes the update requests of steps.
type Enqueuer interface {
	// RequestSteps enqueues the requests in the LOW lane, as strict requests with the reason RUN. It
	// returns the outcome of each request, in the order of the requests.
	RequestSteps(ctx context.Context, requests []Request) []Enqueued
}

// Items reads the items of collections.
type Items interface {
	// Items returns the items of a range.
	Items(ctx context.Context, e schemas.Entity, r collection.Range) ([]collection.Item, error)
}

// Poller ends the due steps of one source or requests their next pages, ends runs at their deadlines, and starts
// scheduled runs. Any number of pollers may run for a source.
type Poller struct {
	source   *source.Source
	configs  map[string]Config
	runs     *Runs
	items    Items
	enqueuer Enqueuer
	rdb      redis.UniversalClient
	poller   *poll.Poller
	log      *slog.Logger
	metrics  *metrics
}

// PollFails is the log condition that lasts while a poller can't work.
var PollFails = observe.Condition{Event: "runs_unclaimed", Failing: "steps of runs can't be claimed or ended; retrying", Recovered: "claiming steps of runs works again"}

// NewPoller returns the poller of a source. `configs` are the definitions of its runs.
func NewPoller(s *source.Source, configs map[string]Config, st Store, enqueuer Enqueuer, rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Poller {
	log = log.With("source", s.Name())
	return &Poller{
		source: s, configs: configs, runs: New(st), items: collection.New(st), enqueuer: enqueuer, rdb: rdb,
		poller: poll.New(Channel(s.Name()), rdb, log, PollFails), log: log, metrics: newMetrics(s.Name(), reg),
	}
}

// Notify wakes this poller, because this process has made a step due.
func (p *Poller) Notify() { p.poller.WakeLocal(time.Now()) }

// IsOpen reports whether a step is open.
func (p *Poller) IsOpen(ctx context.Context, step Ref) (bool, error) { return p.runs.IsOpen(ctx, step) }

// Answered makes steps due, and wakes this poller.
func (p *Poller) Answered(ctx context.Context, steps []Ref, now time.Time) error {
	if err := p.runs.Answered(ctx, steps, now); err != nil {
		return err
	}
	p.poller.WakeLocal(now)
	return nil
}

// Run works until ctx ends.
func (p *Poller) Run(ctx context.Context) error { return p.poller.Run(ctx, maxSleep, p.Work) }

// Work does all work that is due at the time `now`. It returns the time of the next work: when a step
// or scheduled run is due, or a deadline passes.
func (p *Poller) Work(ctx context.Context, now time.Time) (next time.Time, err error) {
	scheduled, err := p.startScheduled(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	overdue, err := p.runs.overdue(ctx, p.source.Name(), now)
	if err != nil {
		return time.Time{}, err
	}
	for _, id := range overdue {
		run, err := p.runs.expire(ctx, id, now)
		if err != nil {
			return time.Time{}, err
		}
		p.changed(ctx, run, now)
	}
	for more := true; more; {
		if more, err = p.pollSteps(ctx, now); err != nil {
			return time.Time{}, err
		}
	}
	next, err = p.runs.next(ctx, p.source.Name())
	if err != nil {
		return time.Time{}, err
	}
	p.metrics.setNext(next)
	return poll.Earlier(next, scheduled), p.measure(ctx)
}

// pollSteps claims due steps, and ends them or requests their next pages. `more` is true if further
// steps may be due now.
func (p *Poller) pollSteps(ctx context.Context, now time.Time) (more bool, err error) {
	steps, err := p.runs.claim(ctx, p.source.Name(), now, lease, maxClaim)
	if err != nil {
		return false, err
	}
	var requests []Request
	var requested []claimed
	var waits []due
	ends := map[string][]StepEnd{}
	var order []string
	for _, c := range steps {
		if c.state != Running {
			continue
		}
		switch d := decide(c, p.source, now); {
		case d.end != nil:
			if ends[c.run] == nil {
				order = append(order, c.run)
			}
			ends[c.run] = append(ends[c.run], *d.end)
		case d.fan:
			more = true
			if err := p.fanOut(ctx, c, now); err != nil {
				return false, err
			}
		case d.request:
			requests = append(requests, p.requestOf(c))
			requested = append(requested, c)
		default:
			waits = append(waits, c.dueAgain(p.source.Name(), d.wait))
		}
	}
	for _, id := range order {
		run, err := p.runs.End(ctx, id, ends[id], now)
		if err != nil {
			return false, err
		}
		p.metrics.stepsEnded(ends[id])
		p.changed(ctx, run, now)
	}
	if len(requests) > 0 {
		for i, outcome := range p.enqueuer.RequestSteps(ctx, requests) {
			p.metrics.requested(outcome)
			if outcome != Published {
				waits = append(waits, requested[i].dueAgain(p.source.Name(), now.Add(coveredRecheck)))
			}
		}
	}
	return more || len(order) > 0 || len(steps) == maxClaim, p.runs.setDue(ctx, waits)
}

func (p *Poller) requestOf(c claimed) Request {
	r := Request{Ref: Ref{c.run, c.entity(p.source.Name())}, Floor: c.version}
	if c.walk.Open() {
		r.Page = c.walk.Name()
	}
	return r
}

// fanOut adds a step for each item of a collection, and then ends the collection's step.
func (p *Poller) fanOut(ctx context.Context, c claimed, now time.Time) error {
	run, err := p.runs.Get(ctx, c.run)
	if err != nil {
		return err
	}
	f := fan{step: c.Number, from: c.fan}
	for !f.last {
		var items []collection.Item
		if len(run.Definition.childrenOf(c.Facet)) > 0 {
			items, err = p.items.Items(ctx, c.entity(p.source.Name()), collection.Range{AfterVersion: f.from.version, AfterID: f.from.item, Limit: fanItems})
			if err != nil {
				return err
			}
		}
		f.children, f.last, f.to = children(run.Definition, c.Facet, items, p.source), len(items) < fanItems, f.from
		if len(items) > 0 {
			last := items[len(items)-1]
			f.to = fanPosition{last.Version, last.ID}
		}
		if run, err = p.runs.addSteps(ctx, c.run, f, now); err != nil {
			return err
		}
		f.from = f.to
	}
	p.metrics.stepsEnded([]StepEnd{{State: StepDone}})
	p.changed(ctx, run, now)
	return nil
}

// changed announces that steps of a run have ended. If this call of Work has ended the run, it also
// logs the end and counts the run.
func (p *Poller) changed(ctx context.Context, run Run, now time.Time) {
	Announce(ctx, p.rdb, run, p.log)
	if !run.Ended() || !run.EndedAt.Equal(now.Truncate(time.Microsecond)) {
		return
	}
	p.metrics.runEnded(run)
	log := p.log.Info
	if run.State == Failed {
		log = p.log.Warn
	}
	log("run ended", "run", run.ID, "name", run.Name, "scope", run.Scope, "state", string(run.State), "attempt", run.Attempt,
		"steps", run.Counts.Total, "not_found", run.Counts.NotFound, "failed", run.Counts.Failed, "duration", run.EndedAt.Sub(run.AttemptAt), "err", run.Error)
}

// startScheduled starts the scheduled runs that are due. It returns the due time of the next one.
func (p *Poller) startScheduled(ctx context.Context, now time.Time) (next time.Time, err error) {
	every := map[string]time.Duration{}
	for name, c := range p.configs {
		if c.Every > 0 {
			every[name] = c.Every
		}
	}
	if len(every) == 0 {
		return time.Time{}, nil
	}
	// The first run of each definition starts at a different point of its interval, so that not all
	// runs start at the same time.
	first := func(name string) time.Time {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(p.source.Name() + "/" + name))
		return now.Add(time.Duration(float64(every[name]) * float64(hash.Sum32()) / (1 << 32))).Truncate(time.Microsecond)
	}
	dues, err := p.runs.schedules(ctx, p.source.Name(), now, every, first)
	if err != nil {
		return time.Time{}, err
	}
	for name, interval := range every {
		at := dues[name]
		if at.After(now) {
			next = poll.Earlier(next, at)
			continue
		}
		following := at.Add(now.Sub(at).Truncate(interval) + interval) // If several times have passed, only one run is started for them.
		run, started, err := p.runs.Start(ctx, Order{
			Source: p.source, Name: name, Config: p.configs[name], Keys: Keys{All: true}, TriggeredBy: ScheduledBy, schedule: &scheduled{at, following},
		}, now)
		switch {
		case errors.Is(err, errTaken):
		case errors.Is(err, ErrInvalid): // no entity is registered, so the run would have no steps
			p.log.Warn("scheduled run not started", "name", name, "err", err)
			if err := p.skipSchedule(ctx, name, scheduled{at, following}); err != nil {
				return time.Time{}, err
			}
		case err != nil:
			return time.Time{}, err
		default:
			p.log.Info("scheduled run is due", "name", name, "run", run.ID, "started", started, "steps", run.Counts.Total)
		}
		next = poll.Earlier(next, following)
	}
	return next, nil
}
