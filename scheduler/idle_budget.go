package scheduler

import (
	"math"
	"time"
)

// IdleBudget measures how much of the budget was not used because no entity was due.
type IdleBudget struct {
	at              time.Time
	available, idle float64 // calls
}

// maxTickGap bounds the time between two ticks that counts. During a longer gap the scheduler did
// not run.
const maxTickGap = time.Minute

// Record adds one tick: the rate in calls a second, the calls enqueued since the last tick, and
// whether all due entities were enqueued.
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

// Fraction returns the unused part of the budget, 0 to 1.
func (u *IdleBudget) Fraction() float64 { return math.Min(u.idle/math.Max(u.available, 1), 1) }

// meanCost is the moving average of the calls that one entity takes.
type meanCost float64

func (m *meanCost) value() float64 { return float64(*m) }

// add includes a claim. The last hundred entities have half of the weight.
func (m *meanCost) add(calls float64, entities int) {
	if entities == 0 {
		return
	}
	keep := math.Exp2(-float64(entities) / 100)
	*m = meanCost(keep*float64(*m) + (1-keep)*calls/float64(entities))
}
