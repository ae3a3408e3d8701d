package scheduler

import (
	"math"
	"time"
)

// IdleBudget tells how much of what could be fed was not, as nothing was due.
type IdleBudget struct {
	at              time.Time
	available, idle float64 // calls
}

// maxTickGap is how much of the time between two looks counts: what lies beyond it was
// no look of anybody's.
const maxTickGap = time.Minute

// Record notes a look: the rate in calls a second, how many calls were fed since the last
// look, and whether all that was due was fed.
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

// Fraction returns the part that was not used, 0 to 1.
func (u *IdleBudget) Fraction() float64 { return math.Min(u.idle/math.Max(u.available, 1), 1) }

// meanCost is how many calls one entity took lately.
type meanCost float64

func (m *meanCost) value() float64 { return float64(*m) }

// add learns from a claim: half of what is believed is from the last hundred entities.
func (m *meanCost) add(calls float64, entities int) {
	if entities == 0 {
		return
	}
	keep := math.Exp2(-float64(entities) / 100)
	*m = meanCost(keep*float64(*m) + (1-keep)*calls/float64(entities))
}
