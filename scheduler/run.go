package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	// maxClaim is the maximum number of entities in one claim.
	maxClaim = 500
	// lease is the lease time of a claim. It is shorter than the TTL of a confirmed LOW lock (60
	// s). If a scheduler crashes, another scheduler takes over its claim and enqueues all requests
	// of the claim again. The locks of the requests that the crashed scheduler had enqueued still
	// exist at that time, so the repeated requests are coalesced.
	lease = 30 * time.Second
	// maxSleep is the maximum time between two ticks. It bounds how late a scheduler takes over an
	// abandoned claim, or sees an earlier due time if the notification about it was lost.
	maxSleep = 10 * time.Second
	// minTick is the minimum time between two ticks. Entities that become due within that time are
	// claimed together.
	minTick = time.Second
	// priceInterval is the minimum time between two adjustments of a source's price.
	priceInterval = time.Minute
)

// Scheduler enqueues the due entities of one source. Several schedulers may run for one source.
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
	pricedAt   time.Time  // time of the last adjustment of the price
	idleBudget IdleBudget // budget that was not used since pricedAt
	survey     Survey
	lag        time.Duration // age of the earliest due time
}

// Deps are the dependencies of a Scheduler.
type Deps struct {
	Store    Store
	Enqueuer Enqueuer
	Capacity CapacityFunc
	Poller   Poller
	// Live returns the schedule by the current settings, and whether prefetching is enabled. The
	// returned schedule must share its Price with the schedule that NewScheduler got. If Live is
	// nil, the settings never change and prefetching is always enabled.
	Live    func(context.Context) (schedule *Schedule, enabled bool)
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// TicksFail is the log condition that lasts while the scheduler's ticks fail.
var TicksFail = observe.Condition{Event: "prefetch_failed", Failing: "prefetch scheduling failed; will retry", Recovered: "prefetch scheduling resumed"}

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

// Run claims and enqueues due entities until ctx ends. A claim that was not finished by then is
// taken over by another scheduler, or by the next Run.
func (s *Scheduler) Run(ctx context.Context) error { return s.poller.Run(ctx, maxSleep, s.tick) }

// tick enqueues due entities within the budget, and returns the time of the next tick.
func (s *Scheduler) tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	startedAt := time.Now()
	if !s.enabled(ctx) {
		s.idle()
		return now.Add(minTick), nil
	}
	if err := s.takeOverClaims(ctx, now); err != nil {
		return time.Time{}, err
	}
	capacity, err := s.capacity(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	capacity.Cost = s.mean.value() // the entities are known only after the claim, so the mean cost is used here
	if err := s.updatePrice(ctx, capacity, now); err != nil {
		return time.Time{}, err
	}
	allowed, retryAt := s.budget.Allowance(capacity, now)
	if _, all := s.contentNotReady(now); all {
		allowed = 0
	}
	found, fed := 0, 0.0
	if allowed = min(allowed, maxClaim); allowed > 0 {
		// The lease must begin now: takeOverClaims may have waited for Kafka since the start of the
		// tick.
		if found, fed, err = s.claim(ctx, now.Add(time.Since(startedAt)), allowed); err != nil {
			return time.Time{}, err
		}
	}
	surveying := false
	if allowed > 0 && found < allowed {
		if surveying, err = s.continueSurvey(ctx, now); err != nil {
			return time.Time{}, err
		}
	}
	first, err := bounded(ctx, func(ctx context.Context) (time.Time, error) { return s.store.NextEntityTime(ctx, s.source) })
	if err != nil {
		return time.Time{}, err
	}
	s.record(capacity, first, now, fed, allowed > 0 && found < allowed)
	soonest := now.Add(minTick)
	switch {
	case first.IsZero():
		return time.Time{}, nil
	case surveying && first.After(soonest):
		return soonest, nil
	case found > 0 && found == allowed && s.budget.Remaining() >= s.mean.value(): // more entities may be due, and the budget allows them
		return now, nil
	case retryAt.Before(soonest):
		retryAt = soonest
	}
	if first.Before(retryAt) { // the next entity is due earlier, but the budget does not allow its refresh yet
		return retryAt, nil
	}
	return first, nil
}

// claim claims at most `limit` due entities and enqueues their requests. `found` is the number of
// claimed entities, including the skipped entities. `fed` is the number of calls that the requests
// take.
func (s *Scheduler) claim(ctx context.Context, now time.Time, limit int) (found int, fed float64, err error) {
	startedAt := time.Now()
	c, err := bounded(ctx, func(ctx context.Context) (prefetched.Claim, error) {
		found = 0
		decide := s.decide(now)
		return s.store.ClaimEntities(ctx, s.source, now, limit, lease, s.NeedsContent, func(c prefetched.Candidate) prefetched.Decision {
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
	return found, fed, s.enqueueAll(ctx, c, startedAt)
}

// decide returns the callback for ClaimEntities: it decides on one due entity, and counts it in the
// metrics if it is skipped.
func (s *Scheduler) decide(now time.Time) func(prefetched.Candidate) prefetched.Decision {
	return func(c prefetched.Candidate) prefetched.Decision {
		s.metrics.delay.Observe(now.Sub(c.Due).Seconds())
		decision, skipped := s.next(c, now)
		if !decision.Enqueue {
			s.metrics.skipped.WithLabelValues(skipped).Inc()
		}
		return decision
	}
}

// bounded calls a method of the store with a timeout of a third of the lease. So the method returns
// before the lease of a claim expires.
func bounded[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	return do(ctx)
}

// takeOverClaims takes over abandoned claims of other schedulers, and enqueues their requests. It
// omits entities that were checked after the claim, because they need no further refresh.
func (s *Scheduler) takeOverClaims(ctx context.Context, now time.Time) error {
	first := time.Now()
	for {
		startedAt := time.Now()
		var found bool
		c, err := bounded(ctx, func(ctx context.Context) (c prefetched.Claim, err error) {
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
		var left []prefetched.ClaimedRequest
		for i, a := range c.Requests {
			if states[i].CheckedAt.Before(c.At) {
				a.Version = states[i].Version
				left = append(left, a)
			}
		}
		s.log.Info("abandoned claim taken over", "entities", len(left), "checked_since", len(c.Requests)-len(left))
		c.Requests = left
		s.metrics.takenOver.Add(float64(len(left)))
		if err := s.enqueueAll(ctx, c, startedAt); err != nil {
			return err
		}
	}
}

// enqueueAll enqueues all requests of a claim and finishes the claim. Meanwhile it renews the lease,
// so that no other scheduler enqueues the same requests. If this process hung and another scheduler
// has taken over the claim, enqueueAll stops at once. `renewed` is a time shortly before the current
// lease began.
func (s *Scheduler) enqueueAll(ctx context.Context, c prefetched.Claim, renewed time.Time) error {
	if c.ID == "" {
		return nil
	}
	held := true
	var renewErr error
	stillHeld := func() bool {
		if held && time.Since(renewed) >= lease/3 {
			renewed = time.Now()
			held, renewErr = s.store.RenewClaim(ctx, c.ID, renewed.Add(lease))
		}
		return held
	}
	left := poll.EnqueueAll(ctx, c.Requests, stillHeld, func(ctx context.Context, some []prefetched.ClaimedRequest) []prefetched.ClaimedRequest {
		if !stillHeld() {
			return some
		}
		ctx, cancel := context.WithTimeout(ctx, lease/3) // a third of the lease, so that the call ends before the lease expires
		defer cancel()
		left := s.enqueuer.Prefetch(ctx, some)
		s.metrics.requested.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 {
		return renewErr
	}
	return s.store.FinishClaim(ctx, c.ID)
}

// record updates the lag, the metrics and the idle budget after a tick. `all` is true if every due
// entity was enqueued.
func (s *Scheduler) record(capacity Capacity, first, now time.Time, fed float64, all bool) {
	s.lag = 0
	if !first.IsZero() && first.Before(now) {
		s.lag = now.Sub(first)
	}
	// Before the notBefore of every facet, the lag metric is 0.
	if _, waits := s.contentNotReady(now); waits {
		first = time.Time{}
	}
	rate := s.budget.Rate(capacity, now)
	s.metrics.setFirstDue(first)
	s.metrics.rate.Set(rate)
	s.metrics.price.Set(s.price.Value())
	s.idleBudget.Record(now, rate, fed, all)
}

// updatePrice adopts the price that the schedulers of the source share. If no scheduler has adjusted
// that price within priceInterval, updatePrice then adjusts it and stores the new shared price. The
// first call after the start only adopts the price. After the first call, updatePrice does nothing
// before the notBefore of any facet.
func (s *Scheduler) updatePrice(ctx context.Context, capacity Capacity, now time.Time) error {
	if someNotReady, _ := s.contentNotReady(now); now.Sub(s.pricedAt) < priceInterval || (someNotReady && !s.pricedAt.IsZero()) {
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
		s.price.Adjust(Load{PerDay: s.perDay(capacity.PerSecond, now), Backlog: s.lag, Unused: s.idleBudget.Fraction(), Share: capacity.Share}, now)
		if _, err := s.store.SetPrice(ctx, s.source, s.price.Value(), now, priceInterval); err != nil {
			return err
		}
	}
	s.pricedAt, s.idleBudget = now, IdleBudget{at: now}
	return nil
}

func entitiesOf(requests []prefetched.ClaimedRequest) []schemas.Entity {
	all := make([]schemas.Entity, len(requests))
	for i, a := range requests {
		all[i] = a.Entity
	}
	return all
}
