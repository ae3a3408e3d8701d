package scheduler

import (
	"math"
	"time"
)

// IdleBudget measures how much of the budget was not used because no entity was due.
type IdleBudget struct {
	at              time.Time
	available, idle float64 // calls that the budget allowed, and the unused part of them
}

// maxTickGap is the maximum time between two ticks for which budget is counted. If two ticks are
// further apart, the scheduler did not run in between, and only the budget of maxTickGap counts.
const maxTickGap = time.Minute

// Record adds one tick. `rate` is the allowed number of calls a second. `fed` is the number of calls
// that were enqueued since the last tick. `all` is true if all due entities were enqueued: only then
// do the unused calls count as idle.
func (u *IdleBudget) Record(now time.Time, rate, fed float64, all bool) {
	if !u.at.IsZero() {
		could := rate * min(max(now.Sub(u.at), 0), maxTickGap).Seconds()
		u.available += could
		if all {
			u.idle += math.Max(0, could-fed)
		}
	}
	u.at = now
}

// Fraction returns the idle part of the budget since the first tick, from 0 to 1.
func (u *IdleBudget) Fraction() float64 { return math.Min(u.idle/math.Max(u.available, 1), 1) }

// meanCost is a moving average of the number of calls that the refresh of one entity takes.
type meanCost float64

func (m *meanCost) value() float64 { return float64(*m) }

// add adds a claim with this number of calls and entities to the average. The last hundred entities
// have half of the weight.
func (m *meanCost) add(calls float64, entities int) {
	if entities == 0 {
		return
	}
	keep := math.Exp2(-float64(entities) / 100)
	*m = meanCost(keep*float64(*m) + (1-keep)*calls/float64(entities))
}
