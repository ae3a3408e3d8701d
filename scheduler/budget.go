package scheduler

import (
	"math"
	"time"
)

// Budget limits how many calls a scheduler enqueues into the LOW topic. Each scheduler has its own
// and enqueues its share of the rate. The work that waits in the topic bounds all schedulers of a
// source together.
//
// Budget is a token bucket: credit grows with the rate, up to a burst of 5 s. At 100 calls a second
// and a share of 1/2 the credit grows by 50 a second, up to 250. The calls that wait in the topic
// must stay below 100 × 60 = 6,000.
type Budget struct {
	spending BudgetConfig
	zone     *time.Location
	credit   float64
	room     float64 // calls until the topic holds the work of one horizon
	at       time.Time
}

// Capacity is the state of a source at one moment, the input of a Budget.
type Capacity struct {
	// PerSecond is the rate of LOW now, in calls a second. It includes the pace of the daily quota.
	PerSecond float64
	// Queued is the number of calls that the requests in the LOW topic will take. Lag is the age of
	// the oldest one.
	Queued float64
	Lag    time.Duration
	// Cost is the mean number of calls for one entity.
	Cost float64
	// Share is this scheduler's part of the rate: 1 if no other scheduler runs.
	Share float64
}

const (
	// horizon is how much work may wait in the topic. It covers a few ticks, and it is short enough
	// that a prefetched request is not outdated when its turn comes.
	horizon = time.Minute
	// burst is the length of a pause that the budget makes up for.
	burst = 5 * time.Second
	// The rate falls linearly to 0 between these two lags of the LOW lane. The lag objective is 30
	// minutes.
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

// rate returns how many calls a second may be enqueued.
func (b *Budget) rate(r Capacity, now time.Time) float64 {
	rate := math.Min(r.PerSecond, b.spending.at(now.In(b.zone).Hour())) * math.Min(r.Share, 1)
	rate *= math.Min(1, float64(lagStops-r.Lag)/float64(lagStops-lagEases))
	if !(rate > 0) { // also NaN
		return 0
	}
	return rate
}

// Allowance returns how many entities may be enqueued now, and when to call it again if all of them
// are. The caller reports the enqueued calls to Spend.
func (b *Budget) Allowance(r Capacity, now time.Time) (entities int, retryAt time.Time) {
	rate, cost := b.rate(r, now), r.Cost
	if !(cost > 0) {
		cost = 1
	}
	passed := now.Sub(b.at)
	if b.at.IsZero() || passed < 0 {
		passed = 0
	}
	b.at = now
	// One entity may cost more than the burst.
	b.credit = math.Min(b.credit+rate*passed.Seconds(), math.Max(rate*burst.Seconds(), cost))
	// At a low rate, one entity may wait behind the one that is being fetched.
	room := math.Max(rate/math.Min(r.Share, 1)*horizon.Seconds(), 2*cost) - math.Max(r.Queued, 0)
	if rate == 0 {
		room = 0
	}
	b.room = room
	entities = int(math.Max(0, math.Floor(math.Min(b.credit, room)/cost+1e-9)))
	return entities, now.Add(b.wait(rate, cost, room, float64(entities)*cost, now))
}

// wait returns the time until the budget allows one more entity. It ends at the full hour, when the
// rate cap may change.
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

// Spend subtracts enqueued calls.
func (b *Budget) Spend(calls float64) {
	b.credit -= math.Max(0, calls)
	b.room -= math.Max(0, calls)
}

// Remaining returns how many calls may still be enqueued.
func (b *Budget) Remaining() float64 { return math.Min(b.credit, b.room) }

// Rate returns how many calls a second may be enqueued now.
func (b *Budget) Rate(r Capacity, now time.Time) float64 { return b.rate(r, now) }
