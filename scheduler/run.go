package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// maxClaim is claimed at once.
	maxClaim = 500
	// lease is how long a claim is its scheduler's. It is shorter than the life of a
	// confirmed LOW lock (60 s): what a scheduler asked for directly before it died is
	// covered when another takes its claim over.
	lease = 30 * time.Second
	// maxSleep is how long a scheduler sleeps at most: so soon it sees a claim that was
	// left, and what nobody told it of.
	maxSleep = 10 * time.Second
	// minTick lies between two looks: what a second has room for is claimed together.
	minTick = time.Second
	// priceInterval is how often the price is looked at.
	priceInterval = time.Minute
)

// Scheduler asks for the entities of one source as they come due. Any number may run for
// a source.
type Scheduler struct {
	*Schedule
	source   string
	budget   *Budget
	store    Store
	enqueuer Enqueuer
	capacity CapacityFunc
	poller   Poller
	live     func(context.Context) (*Schedule, bool)
	log      *slog.Logger
	metrics  *metrics

	mean       meanCost
	pricedAt   time.Time  // when the price was looked at last
	idleBudget IdleBudget // since then
	survey     Survey
	lag        time.Duration // since when the entity that is due first is
}

// Deps are what a Scheduler works with.
type Deps struct {
	Store    Store
	Enqueuer Enqueuer
	Capacity CapacityFunc
	Poller   Poller
	// Live returns the schedule in force, with the price of the one that NewScheduler was
	// given, and whether entities are prefetched at all; nil: nothing is changed.
	Live    func(context.Context) (schedule *Schedule, enabled bool)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Messages are what its loop says.
var Messages = poll.Messages{Failing: "nothing is prefetched until this succeeds", Recovered: "prefetching goes on"}

// NewScheduler returns the scheduler of a source.
func NewScheduler(source string, schedule *Schedule, deps Deps) (*Scheduler, error) {
	budget, err := NewBudget(schedule.spending)
	if err != nil {
		return nil, err
	}
	return &Scheduler{
		Schedule: schedule, source: source, budget: budget, mean: meanCost(schedule.maxCost), store: deps.Store, enqueuer: deps.Enqueuer, capacity: deps.Capacity, poller: deps.Poller, live: deps.Live,
		log: deps.Log.With("source", source), metrics: newMetrics(source, deps.Metrics),
	}, nil
}

// Run asks until ctx ends. What was claimed and not asked for by then is taken over by
// another scheduler, or by the next run.
func (s *Scheduler) Run(ctx context.Context) error { return s.poller.Run(ctx, maxSleep, s.tick) }

// tick asks for what is due as far as the budget goes, and returns when to look again.
func (s *Scheduler) tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	began := time.Now()
	if !s.enabled(ctx) {
		s.idle()
		return now.Add(minTick), nil
	}
	if err := s.takeOverClaims(ctx, now); err != nil {
		return time.Time{}, err
	}
	room, err := s.capacity(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	room.Cost = s.mean.value() // what is due is known only once it is claimed
	if err := s.updatePrice(ctx, room, now); err != nil {
		return time.Time{}, err
	}
	may, again := s.budget.Allowance(room, now)
	if _, all := s.contentNotReady(now); all {
		may = 0
	}
	found, fed := 0, 0.0
	if may = min(may, maxClaim); may > 0 {
		// A take-over may have waited for Kafka: a lease counts from its claim.
		if found, fed, err = s.claim(ctx, now.Add(time.Since(began)), may); err != nil {
			return time.Time{}, err
		}
	}
	surveying := false
	if may > 0 && found < may {
		if surveying, err = s.continueSurvey(ctx, now); err != nil {
			return time.Time{}, err
		}
	}
	first, err := bounded(ctx, func(ctx context.Context) (time.Time, error) { return s.store.NextEntityTime(ctx, s.source) })
	if err != nil {
		return time.Time{}, err
	}
	s.record(room, first, now, fed, may > 0 && found < may)
	soonest := now.Add(minTick)
	switch {
	case first.IsZero():
		return time.Time{}, nil
	case surveying && first.After(soonest):
		return soonest, nil
	case found > 0 && found == may && s.budget.Remaining() >= s.mean.value(): // there may be more, and there is room for it
		return now, nil
	case again.Before(soonest):
		again = soonest
	}
	if first.Before(again) { // it is due, and the budget is not there yet
		return again, nil
	}
	return first, nil
}

// claim asks for up to most of what is due. It returns how many were due, and how many
// calls those take that were asked for.
func (s *Scheduler) claim(ctx context.Context, now time.Time, most int) (found int, fed float64, err error) {
	began := time.Now()
	c, err := bounded(ctx, func(ctx context.Context) (store.Claim, error) {
		found = 0
		decide := s.decide(now)
		return s.store.ClaimEntities(ctx, s.source, now, most, lease, s.NeedsContent, func(c store.Candidate) store.Decision {
			found++
			return decide(c)
		})
	})
	if err != nil {
		return 0, 0, err
	}
	fed = s.costOf(c.Requests)
	s.budget.Spend(fed)
	s.mean.add(fed, len(c.Requests))
	return found, fed, s.enqueueAll(ctx, c, began)
}

// decide returns what becomes of each entity that is due now.
func (s *Scheduler) decide(now time.Time) func(store.Candidate) store.Decision {
	return func(c store.Candidate) store.Decision {
		s.metrics.delay.Observe(now.Sub(c.Due).Seconds())
		move, why := s.next(c, now)
		if !move.Enqueue {
			s.metrics.skipped.WithLabelValues(why).Inc()
		}
		return move
	}
}

// bounded bounds a call of the store: one that hangs must not outlast a claim.
func bounded[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	return do(ctx)
}

// takeOverClaims asks for what schedulers that died have claimed. What was checked since then
// was asked for.
func (s *Scheduler) takeOverClaims(ctx context.Context, now time.Time) error {
	first := time.Now()
	for {
		began := time.Now()
		var found bool
		c, err := bounded(ctx, func(ctx context.Context) (c store.Claim, err error) {
			c, found, err = s.store.TakeOverClaim(ctx, s.source, now.Add(time.Since(first)), lease)
			return c, err
		})
		if err != nil || !found {
			return err
		}
		states, err := bounded(ctx, func(ctx context.Context) ([]store.State, error) { return s.store.States(ctx, entitiesOf(c.Requests)) })
		if err != nil {
			return err
		}
		var left []store.ClaimedRequest
		for i, a := range c.Requests {
			if states[i].CheckedAt.Before(c.At) {
				a.Version = states[i].Version
				left = append(left, a)
			}
		}
		s.log.Info("what another scheduler had claimed is asked for", "entities", len(left), "checked_since", len(c.Requests)-len(left))
		c.Requests = left
		s.metrics.takenOver.Add(float64(len(left)))
		if err := s.enqueueAll(ctx, c, began); err != nil {
			return err
		}
	}
}

// enqueueAll asks for all of a claim that was made since then, and finishes it. Until then it
// is renewed, so that no other scheduler asks as well; one that has taken it over all the
// same, as the process hung, goes on alone: also if that was before anything was asked.
func (s *Scheduler) enqueueAll(ctx context.Context, c store.Claim, renewed time.Time) error {
	if c.ID == "" {
		return nil
	}
	var lost error
	still := true
	held := func() bool {
		if still && time.Since(renewed) >= lease/3 {
			renewed = time.Now()
			still, lost = s.store.RenewClaim(ctx, c.ID, renewed.Add(lease))
		}
		return still
	}
	left := poll.EnqueueAll(ctx, c.Requests, held, func(ctx context.Context, some []store.ClaimedRequest) []store.ClaimedRequest {
		if !held() {
			return some
		}
		ctx, cancel := context.WithTimeout(ctx, lease/3) // a door that hangs must not outlast the claim
		defer cancel()
		left := s.enqueuer.Prefetch(ctx, some)
		s.metrics.requested.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 {
		return lost
	}
	return s.store.FinishClaim(ctx, c.ID)
}

// record notes how far behind it is, and how many of the calls that could be made since the
// last look were not. all: nothing that is due is left.
func (s *Scheduler) record(room Capacity, first, now time.Time, fed float64, all bool) {
	s.lag = 0
	if !first.IsZero() && first.Before(now) {
		s.lag = now.Sub(first)
	}
	if _, waits := s.contentNotReady(now); waits { // what is due since the day before waits, as it should
		first = time.Time{}
	}
	rate := s.budget.Rate(room, now)
	s.metrics.setFirstDue(first)
	s.metrics.rate.Set(rate)
	s.metrics.price.Set(s.price.Value())
	s.idleBudget.Record(now, rate, fed, all)
}

// updatePrice moves the price once in a while, by one of the source's schedulers; the others,
// and one that has just started, take it from there.
func (s *Scheduler) updatePrice(ctx context.Context, room Capacity, now time.Time) error {
	if some, _ := s.contentNotReady(now); now.Sub(s.pricedAt) < priceInterval || (some && !s.pricedAt.IsZero()) {
		return nil
	}
	price, at, err := s.store.Price(ctx, s.source)
	if err != nil {
		return err
	}
	if !at.IsZero() {
		s.price.Adopt(price)
	}
	if !s.pricedAt.IsZero() && now.Sub(at) >= priceInterval {
		s.price.Adjust(Load{PerDay: s.perDay(room.PerSecond, now), Backlog: s.lag, Unused: s.idleBudget.Fraction(), Share: room.Share}, now)
		if _, err := s.store.SetPrice(ctx, s.source, s.price.Value(), now, priceInterval); err != nil {
			return err
		}
	}
	s.pricedAt, s.idleBudget = now, IdleBudget{at: now}
	return nil
}

func entitiesOf(asks []store.ClaimedRequest) []schemas.Entity {
	all := make([]schemas.Entity, len(asks))
	for i, a := range asks {
		all[i] = a.Entity
	}
	return all
}
