package scheduler

import (
	"math"
	"time"
)

// Unused tells how much of what could be fed was not, as nothing was due.
type Unused struct {
	at          time.Time
	could, free float64 // calls
}

// longestLook is how much of the time between two looks counts: what lies beyond it was
// no look of anybody's.
const longestLook = time.Minute

// Saw notes a look: the rate in calls a second, how many calls were fed since the last
// look, and whether all that was due was fed.
func (u *Unused) Saw(now time.Time, rate, fed float64, all bool) {
	if !u.at.IsZero() {
		could := rate * min(max(now.Sub(u.at), 0), longestLook).Seconds()
		u.could += could
		if all {
			u.free += math.Max(0, could-fed)
		}
	}
	u.at = now
}

// Part returns the part that was not used, 0 to 1.
func (u *Unused) Part() float64 { return math.Min(u.free/math.Max(u.could, 1), 1) }

// meanCost is how many calls one entity took lately.
type meanCost float64

func (m *meanCost) value() float64 { return float64(*m) }

// saw learns from a claim: half of what is believed is from the last hundred entities.
func (m *meanCost) saw(calls float64, entities int) {
	if entities == 0 {
		return
	}
	keep := math.Exp2(-float64(entities) / 100)
	*m = meanCost(keep*float64(*m) + (1-keep)*calls/float64(entities))
}
