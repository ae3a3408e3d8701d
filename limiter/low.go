package limiter

import (
	"math"
	"slices"
	"time"
)

// LowPerSecond returns how many calls LOW may make in a second as it stands now: by its
// share of each window, by the hour's ceiling and by what is left of the day. It is 0
// while no call is made at all.
func (q Quota) LowPerSecond(v View) float64 {
	if slices.Contains([]string{"stopped", "braked", probing, uncounted, startingQuiet}, v.State) {
		return 0
	}
	rate := math.Inf(1)
	for _, b := range q.Bounds() {
		if b.Window != Day {
			rate = min(rate, q.calls(b)*b.Low/time.Duration(b.Window).Seconds())
		}
	}
	rate *= v.Rate
	if interval := q.ceilingAt(v.At); interval > 0 {
		rate = min(rate, float64(time.Second)/float64(interval))
	}
	for _, p := range v.Policies {
		if p.ResetsAt != nil {
			rate = min(rate, float64(p.LeftForLow)/max(1, p.ResetsAt.Sub(v.At).Seconds()))
		}
	}
	return max(0, rate)
}

// calls returns how many calls, over all values of the policy's scope, a unit of what it
// allows comes to.
func (q Quota) calls(b PolicyBound) float64 {
	for _, s := range q.scoped {
		if s.policy.Name == b.Name {
			return q.values(s) / q.leastCost(s.policy)
		}
	}
	return 1
}
