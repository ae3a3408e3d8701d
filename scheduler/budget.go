package scheduler

import (
	"math"
	"time"
)

// Budget says how much may be fed into the LOW topic of a source, in upstream calls. It
// belongs to one scheduler; where several run, each feeds its share of the rate, and what
// waits in the topic keeps them together within the horizon's work.
type Budget struct {
	spending BudgetConfig
	zone     *time.Location
	credit   float64
	room     float64 // as it was last time, without what was fed since
	at       time.Time
}

// Capacity is what a Budget is told of a source.
type Capacity struct {
	// PerSecond is how many calls LOW may make in a second now, the day's pace in it.
	PerSecond float64
	// Queued are the calls that what lies in the LOW topic will take, and Lag is how
	// long its oldest record has waited.
	Queued float64
	Lag    time.Duration
	// Cost is how many calls one entity takes.
	Cost float64
	// Share is the part of what is fed that this scheduler feeds: all, 1, if no other runs.
	Share float64
}

const (
	// horizon is how much work may wait in the topic: enough to outlast a few ticks,
	// little enough to be overtaken by nobody.
	horizon = time.Minute
	// burst is how long a stretch may be made up for that nothing was fed in.
	burst = 5 * time.Second
	// Between these lags of the LOW lane, whose bound is 30 minutes, feeding dies down.
	lagEases = 5 * time.Minute
	lagStops = 15 * time.Minute
)

// NewBudget returns the budget of a source.
func NewBudget(s BudgetConfig) (*Budget, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		return nil, err
	}
	return &Budget{spending: s, zone: zone}, nil
}

// rate returns how many calls a second may be fed.
func (b *Budget) rate(r Capacity, now time.Time) float64 {
	rate := math.Min(r.PerSecond, b.spending.at(now.In(b.zone).Hour())) * math.Min(r.Share, 1)
	rate *= math.Min(1, float64(lagStops-r.Lag)/float64(lagStops-lagEases))
	if !(rate > 0) { // so that a NaN is nothing
		return 0
	}
	return rate
}

// Allowance returns how many entities may be fed now, and when it is worth asking again if
// these are fed. Spent says how many were.
func (b *Budget) Allowance(r Capacity, now time.Time) (entities int, again time.Time) {
	rate, cost := b.rate(r, now), r.Cost
	if !(cost > 0) {
		cost = 1
	}
	passed := now.Sub(b.at)
	if b.at.IsZero() || passed < 0 {
		passed = 0
	}
	b.at = now
	// An entity may cost more than a burst holds.
	b.credit = math.Min(b.credit+rate*passed.Seconds(), math.Max(rate*burst.Seconds(), cost))
	// Of what is slow, one may wait behind the one that is under way.
	room := math.Max(rate/math.Min(r.Share, 1)*horizon.Seconds(), 2*cost) - math.Max(r.Queued, 0)
	if rate == 0 {
		room = 0
	}
	b.room = room
	entities = int(math.Max(0, math.Floor(math.Min(b.credit, room)/cost+1e-9)))
	return entities, now.Add(b.wait(rate, cost, room, float64(entities)*cost, now))
}

// wait returns how long it takes until there is credit and room for one more, but not
// beyond the hour, when the rate may be another.
func (b *Budget) wait(rate, cost, room, fed float64, now time.Time) time.Duration {
	local := now.In(b.zone)
	edge := time.Hour - time.Duration(local.Minute())*time.Minute - time.Duration(local.Second())*time.Second - time.Duration(local.Nanosecond())
	if rate == 0 {
		return min(edge, horizon)
	}
	seconds := math.Max((cost-b.credit+fed)/rate, (cost-room+fed)/rate)
	wait := time.Duration(math.Min(math.Max(seconds, 1e-3), horizon.Seconds()) * float64(time.Second))
	return min(wait+1, edge)
}

// Spend says that so many calls were fed.
func (b *Budget) Spend(calls float64) {
	b.credit -= math.Max(0, calls)
	b.room -= math.Max(0, calls)
}

// Remaining returns how many calls may be fed yet, as far as is known.
func (b *Budget) Remaining() float64 { return math.Min(b.credit, b.room) }

// Rate returns how many calls a second may be fed now.
func (b *Budget) Rate(r Capacity, now time.Time) float64 { return b.rate(r, now) }
