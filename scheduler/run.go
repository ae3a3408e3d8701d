package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/due"
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
	// lookAgain is how long a scheduler sleeps at most: so soon it sees a claim that was
	// left, and what nobody told it of.
	lookAgain = 10 * time.Second
	// tickLeast lies between two looks: what a second has room for is claimed together.
	tickLeast = time.Second
	// priceEvery is how often the price is looked at.
	priceEvery = time.Minute
)

// Scheduler asks for the entities of one source as they come due. Any number may run for
// a source.
type Scheduler struct {
	*Schedule
	source  string
	budget  *Budget
	store   Store
	door    Door
	look    Look
	loop    Loop
	log     *slog.Logger
	metrics *metrics

	priced      time.Time     // when the price was looked at last
	could, free float64       // entities since then that could be asked for, and that were not as nothing was due
	behind      time.Duration // since when the entity that is due first is
}

// Needs are what a Scheduler works with.
type Needs struct {
	Store   Store
	Door    Door
	Look    Look
	Loop    Loop
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Words are what its loop says.
var Words = due.Words{Waits: "nothing is prefetched until this succeeds", GoesOn: "prefetching goes on"}

// NewScheduler returns the scheduler of a source.
func NewScheduler(source string, schedule *Schedule, needs Needs) (*Scheduler, error) {
	budget, err := NewBudget(schedule.spending)
	if err != nil {
		return nil, err
	}
	return &Scheduler{
		Schedule: schedule, source: source, budget: budget, store: needs.Store, door: needs.Door, look: needs.Look, loop: needs.Loop,
		log: needs.Log.With("source", source), metrics: newMetrics(source, needs.Metrics),
	}, nil
}

// Run asks until ctx ends. What was claimed and not asked for by then is taken over by
// another scheduler, or by the next run.
func (s *Scheduler) Run(ctx context.Context) error { return s.loop.Run(ctx, lookAgain, s.tick) }

// tick asks for what is due as far as the budget goes, and returns when to look again.
func (s *Scheduler) tick(ctx context.Context, now time.Time) (next time.Time, err error) {
	if err := s.takeOver(ctx, now); err != nil {
		return time.Time{}, err
	}
	room, err := s.look(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	room.Cost = s.dearest // what is due is known only once it is claimed
	if err := s.reprice(ctx, room, now); err != nil {
		return time.Time{}, err
	}
	may, again := s.budget.May(room, now)
	if _, all := s.waits(now); all {
		may = 0
	}
	fed := 0
	if may = min(may, claimMost); may > 0 {
		began := time.Now()
		c, err := s.store.ClaimEntities(ctx, s.source, now, may, lease, s.JudgesContent, s.decide(now))
		if err != nil {
			return time.Time{}, err
		}
		fed = len(c.Asks)
		s.budget.Spent(s.costOf(c.Asks))
		if err := s.askAll(ctx, c, began); err != nil {
			return time.Time{}, err
		}
	}
	first, err := s.store.NextDueEntity(ctx, s.source)
	if err != nil {
		return time.Time{}, err
	}
	s.saw(room, first, now, may, fed)
	switch soonest := now.Add(tickLeast); {
	case first.IsZero():
		return time.Time{}, nil
	case may == claimMost: // there may be room for more
		return now, nil
	case again.Before(soonest):
		again = soonest
	}
	if first.Before(again) { // it is due, and the budget is not there yet
		return again, nil
	}
	return first, nil
}

// decide returns what becomes of each entity that is due now.
func (s *Scheduler) decide(now time.Time) func(store.Candidate) store.Move {
	return func(c store.Candidate) store.Move {
		s.metrics.late.Observe(now.Sub(c.Due).Seconds())
		move, why := s.next(c, now)
		if !move.Ask {
			s.metrics.alone.WithLabelValues(why).Inc()
		}
		return move
	}
}

// takeOver asks for what schedulers that died have claimed. What was checked since then
// was asked for.
func (s *Scheduler) takeOver(ctx context.Context, now time.Time) error {
	for {
		began := time.Now()
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
		s.metrics.taken.Add(float64(len(left)))
		if err := s.askAll(ctx, c, began); err != nil {
			return err
		}
	}
}

// askAll asks for all of a claim that was made since then, and finishes it. Until then it
// is renewed, so that no other scheduler asks as well; one that has taken it over all the
// same, as the process hung, goes on alone: also if that was before anything was asked.
func (s *Scheduler) askAll(ctx context.Context, c store.Claim, renewed time.Time) error {
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
	left := due.UntilAsked(ctx, c.Asks, held, func(ctx context.Context, some []store.Ask) []store.Ask {
		if !held() {
			return some
		}
		ctx, cancel := context.WithTimeout(ctx, lease/3) // a door that hangs must not outlast the claim
		defer cancel()
		left := s.door.Prefetch(ctx, some)
		s.metrics.asked.Add(float64(len(some) - len(left)))
		return left
	})
	if len(left) > 0 {
		return lost
	}
	return s.store.FinishClaim(ctx, c.ID)
}

// saw notes how much was due and how much of what could be asked for was not.
func (s *Scheduler) saw(room Room, first, now time.Time, may, fed int) {
	s.behind = 0
	if !first.IsZero() && first.Before(now) {
		s.behind = now.Sub(first)
	}
	if _, all := s.waits(now); all { // what is due since the day before waits, as it should
		first = time.Time{}
	}
	s.metrics.dueFirst(first)
	s.metrics.rate.Set(s.budget.Rate(room, now))
	s.metrics.price.Set(s.price.Value())
	s.could += float64(may)
	s.free += float64(max(0, may-fed))
}

// reprice moves the price once in a while, by one of the source's schedulers; the others,
// and one that has just started, take it from there.
func (s *Scheduler) reprice(ctx context.Context, room Room, now time.Time) error {
	if some, _ := s.waits(now); now.Sub(s.priced) < priceEvery || (some && !s.priced.IsZero()) {
		return nil
	}
	price, at, err := s.store.Price(ctx, s.source)
	if err != nil {
		return err
	}
	if !at.IsZero() {
		s.price.Adopt(price)
	}
	if !s.priced.IsZero() && now.Sub(at) >= priceEvery {
		s.price.Adjust(Load{PerDay: s.perDay(room.PerSecond), Behind: s.behind, Unused: s.free / max(s.could, 1), Share: room.Share}, now)
		if _, err := s.store.SetPrice(ctx, s.source, s.price.Value(), now, priceEvery); err != nil {
			return err
		}
	}
	s.priced, s.could, s.free = now, 0, 0
	return nil
}

func entitiesOf(asks []store.Ask) []schemas.Entity {
	all := make([]schemas.Entity, len(asks))
	for i, a := range asks {
		all[i] = a.Entity
	}
	return all
}
