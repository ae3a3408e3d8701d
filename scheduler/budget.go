package scheduler

import (
	"math"
	"time"
)

// Budget limits how many calls a scheduler enqueues into the LOW topic. Each scheduler has its own
// Budget and enqueues its share of the source's rate. The limit of the work that waits in the topic
// applies to all schedulers of a source together.
//
// Budget is a token bucket: its credit grows with the rate, up to the calls of 5 s (the burst). At
// 100 calls a second and a share of 1/2 the credit grows by 50 a second, up to 250. At most the
// work of one minute may wait in the topic: 100 × 60 = 6,000 calls.
type Budget struct {
	spending BudgetConfig
	zone     *time.Location
	credit   float64
	room     float64 // number of calls that may be added until the waiting requests of the topic take the workers one minute
	at       time.Time
}

// Capacity is the state of a source at one moment, the input of a Budget.
type Capacity struct {
	// PerSecond is the rate of the LOW lane now, in calls a second. The daily quota is taken into
	// account: it is spread over the rest of the day.
	PerSecond float64
	// Queued is the number of calls that the waiting requests in the LOW topic will take. Lag is
	// the age of the oldest of these requests.
	Queued float64
	Lag    time.Duration
	// Cost is the mean number of calls that the refresh of one entity takes.
	Cost float64
	// Share is the part of the rate that this scheduler may use: 1 if no other scheduler runs.
	Share float64
}

const (
	// horizon is the maximum work that may wait in the LOW topic, as the time that the workers need
	// for it. It is longer than a few ticks, so that the workers never run out of requests. It is
	// short enough that a request is not outdated when a worker reads it.
	horizon = time.Minute
	// burst is the length of a pause after which all calls of the pause can still be made. It limits
	// the credit.
	burst = 5 * time.Second
	// The lag is the age of the oldest request that waits in the LOW topic; the objective is at
	// most 30 minutes. While the lag rises from lagEases to lagStops, the prefetch rate falls
	// linearly to 0. At a lag of 10 minutes, for example, the rate is halved.
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

// rate returns how many calls a second this scheduler may enqueue.
func (b *Budget) rate(r Capacity, now time.Time) float64 {
	rate := math.Min(r.PerSecond, b.spending.at(now.In(b.zone).Hour())) * math.Min(r.Share, 1)
	rate *= math.Min(1, float64(lagStops-r.Lag)/float64(lagStops-lagEases))
	if !(rate > 0) { // written with "not", so that it is also true if rate is NaN
		return 0
	}
	return rate
}

// Allowance returns how many entities may be enqueued now. `retryAt` is the time to call Allowance
// again if the caller enqueues all of them. The caller reports the calls of the enqueued requests to
// Spend.
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
	// The credit may exceed the burst, because one entity may cost more calls than the burst.
	b.credit = math.Min(b.credit+rate*passed.Seconds(), math.Max(rate*burst.Seconds(), cost))
	// Even at a low rate there is room for two entities: the workers fetch the first while the
	// second waits.
	room := math.Max(rate/math.Min(r.Share, 1)*horizon.Seconds(), 2*cost) - math.Max(r.Queued, 0)
	if rate == 0 {
		room = 0
	}
	b.room = room
	entities = int(math.Max(0, math.Floor(math.Min(b.credit, room)/cost+1e-9)))
	return entities, now.Add(b.wait(rate, cost, room, float64(entities)*cost, now))
}

// wait returns the time until the budget allows one more entity, if the caller first enqueues `fed`
// calls now. The result is never longer than the time to the next full hour, because the rate cap may
// change then.
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

// Spend subtracts the calls of enqueued requests from the budget.
func (b *Budget) Spend(calls float64) {
	b.credit -= math.Max(0, calls)
	b.room -= math.Max(0, calls)
}

// Remaining returns how many calls may be enqueued before the next call of Allowance.
func (b *Budget) Remaining() float64 { return math.Min(b.credit, b.room) }

// Rate returns how many calls a second this scheduler may enqueue now.
func (b *Budget) Rate(r Capacity, now time.Time) float64 { return b.rate(r, now) }
