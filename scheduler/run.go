package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	// claimMost is claimed at once.
	claimMost = 500
	// lease is how long a claim is its scheduler's. It is shorter than the life of a
	// confirmed LOW lock (60 s): what a scheduler asked for directly before it died is
	// covered when another takes its claim over.
	lease = 30 * time.Second
	// lookAgain is how long a scheduler sleeps at most: so soon it sees what was
	// registered meanwhile, and a claim that was left.
	lookAgain = 10 * time.Second
	// backoffFirst doubles up to backoffMost while the database, Redis or Kafka is away.
	backoffFirst = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
	// priceEvery is how often the price is looked at.
	priceEvery = time.Minute
)

// Facet is a facet that is prefetched, and how many calls one refresh of it takes.
type Facet struct {
	Config Config
	Cost   int
}

// Scheduler asks for the entities of one source as they come due. Any number may run for
// a source.
type Scheduler struct {
	source   string
	policies map[string]*Policy
	cost     map[string]float64
	spending Spending
	budget   *Budget
	price    *Price
	store    Store
	door     Door
	look     Look
	log      *slog.Logger
	metrics  *metrics

	priced      time.Time // when the price was looked at last
	could, free float64   // calls since then that could be asked for, and that were not as nothing was due
}

// Needs are what a Scheduler works with.
type Needs struct {
	Store   Store
	Door    Door
	Look    Look
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// NewScheduler returns the scheduler of a source's facets, or all mistakes in their settings.
func NewScheduler(source string, spending Spending, facets map[string]Facet, needs Needs) (*Scheduler, error) {
	s := &Scheduler{
		source: source, policies: map[string]*Policy{}, cost: map[string]float64{}, spending: spending, price: NewPrice(),
		store: needs.Store, door: needs.Door, look: needs.Look, log: needs.Log.With("source", source), metrics: newMetrics(source, needs.Metrics),
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(facets)) {
		f := facets[name]
		if f.Config.Mode == Off {
			continue
		}
		p, err := New(f.Config, spending, f.Cost, s.price)
		if err != nil {
			errs = append(errs, fmt.Errorf("facets.%s.prefetch: %w", name, err))
			continue
		}
		s.policies[name], s.cost[name] = p, float64(max(1, f.Cost))
	}
	b, err := NewBudget(spending)
	s.budget = b
	return s, errors.Join(append(errs, err)...)
}

// First returns when an entity that is registered now is due first, and whether its facet
// is prefetched.
func (s *Scheduler) First(r store.Registered, now time.Time) (time.Time, bool) {
	p, ok := s.policies[r.Entity.Facet]
	if !ok {
		return time.Time{}, false
	}
	return p.First(r.Entity, r.Tier, now), true
}

// Run asks until ctx ends. What was claimed and not asked for by then is taken over by
// another scheduler, or by the next run.
func (s *Scheduler) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	backoff, failed := backoffFirst, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next, err := s.tick(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failed {
				s.log.Warn("nothing is prefetched until this succeeds", "err", err)
			}
			failed = true
			timer.Reset(backoff)
			backoff = min(2*backoff, backoffMost)
			continue
		case failed:
			s.log.Info("prefetching goes on")
		}
		backoff, failed = backoffFirst, false
		timer.Reset(time.Until(next))
	}
}

// tick asks for what is due as far as the budget goes, and returns when to look again.
func (s *Scheduler) tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	if err := s.takeOver(ctx, now); err != nil {
		return time.Time{}, err
	}
	room, err := s.look(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	room.Cost = s.dearest()
	may, again := s.budget.May(room, now)
	fed := 0
	if may = min(may, claimMost); may > 0 {
		c, err := s.store.ClaimEntities(ctx, s.source, now, may, lease, s.decide(now))
		if err != nil {
			return time.Time{}, err
		}
		fed = len(c.Asks)
		s.budget.Spent(s.costOf(c.Asks))
		if err := s.askAll(ctx, c); err != nil {
			return time.Time{}, err
		}
	}
	due, err := s.store.NextDueEntity(ctx, s.source)
	if err != nil {
		return time.Time{}, err
	}
	s.adjust(room, due, now, may, fed)
	latest := now.Add(lookAgain)
	if due.IsZero() || due.After(latest) {
		return latest, nil
	}
	if due.Before(again) { // it is due, and the budget is not there yet
		due = again
	}
	if due.After(latest) {
		return latest, nil
	}
	return due, nil
}

// dearest is the cost of the facet whose refresh takes the most calls: what is due is
// known only once it is claimed.
func (s *Scheduler) dearest() float64 {
	cost := 1.0
	for _, c := range s.cost {
		cost = max(cost, c)
	}
	return cost
}

func (s *Scheduler) costOf(asks []store.Ask) (sum float64) {
	for _, a := range asks {
		sum += s.cost[a.Entity.Facet]
	}
	return sum
}

// decide returns what becomes of each entity that is due now.
func (s *Scheduler) decide(now time.Time) func(store.Candidate) store.Move {
	return func(c store.Candidate) store.Move {
		p, ok := s.policies[c.Entity.Facet]
		if !ok { // it is not prefetched any more, or by this configuration
			return store.Move{Due: now.Add(24 * time.Hour), Tier: c.Tier, History: c.History}
		}
		s.metrics.late.Observe(now.Sub(c.Due).Seconds())
		return p.Next(c, now)
	}
}

// takeOver asks for what schedulers that died have claimed. What was checked since then
// was asked for.
func (s *Scheduler) takeOver(ctx context.Context, now time.Time) error {
	for {
		c, found, err := s.store.AbandonedClaim(ctx, s.source, now, lease)
		if err != nil || !found {
			return err
		}
		entities := entitiesOf(c.Asks)
		states, err := s.store.States(ctx, entities)
		if err != nil {
			return err
		}
		var left []store.Ask
		for i, a := range c.Asks {
			if states[i].CheckedAt.Before(c.At) {
				a.Version = states[i].Version
				left = append(left, a)
			}
		}
		s.log.Info("what another scheduler had claimed is asked for", "entities", len(left), "checked_since", len(c.Asks)-len(left))
		c.Asks = left
		if err := s.askAll(ctx, c); err != nil {
			return err
		}
	}
}

// askAll asks for all of a claim, and finishes it. Until then it is renewed, so that no
// other scheduler asks as well.
func (s *Scheduler) askAll(ctx context.Context, c store.Claim) error {
	if c.ID == "" {
		return nil
	}
	left := c.Asks
	for backoff, held := backoffFirst, time.Now(); len(left) > 0; backoff = min(2*backoff, backoffMost) {
		n := len(left)
		left = s.door.Prefetch(ctx, left)
		s.metrics.asked.Add(float64(n - len(left)))
		if len(left) == 0 {
			break
		}
		if !pause(ctx, backoff) {
			return ctx.Err()
		}
		if time.Since(held) > lease/3 {
			held = time.Now()
			if still, err := s.store.RenewClaim(ctx, c.ID, held.Add(lease)); err != nil || !still {
				return err
			}
		}
	}
	return s.store.FinishClaim(ctx, c.ID)
}

// adjust tells the price, once in a while, how much is due and how much is not used.
func (s *Scheduler) adjust(room Room, due, now time.Time, may, fed int) {
	rate := s.budget.Rate(room, now)
	s.metrics.rate.Set(rate)
	behind := time.Duration(0)
	if !due.IsZero() && due.Before(now) {
		behind = now.Sub(due)
	}
	s.metrics.behind.Set(behind.Seconds())
	for _, p := range s.policies {
		if p.Waits(now) {
			return
		}
	}
	s.could += float64(may)
	s.free += float64(max(0, may-fed))
	if now.Sub(s.priced) < priceEvery {
		return
	}
	s.priced = now
	day := 0.0
	for hour := range 24 {
		day += 3600 * min(s.spending.at(hour), room.PerSecond)
	}
	s.price.Adjust(Load{PerDay: day, Behind: behind, Unused: s.free / max(s.could, 1), Share: 1}, now)
	s.could, s.free = 0, 0
}

// pause waits; it reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func entitiesOf(asks []store.Ask) []schemas.Entity {
	all := make([]schemas.Entity, len(asks))
	for i, a := range asks {
		all[i] = a.Entity
	}
	return all
}
