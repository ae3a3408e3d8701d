package scheduler

import (
	"math"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// intervalOf returns the time between two prefetches of an entity, in the mode of its facet.
func (p *Policy) intervalOf(tier prefetched.Tier, s activity, state store.State) time.Duration {
	every := p.tier(tier).Every
	if p.config.Mode == Adaptive {
		every = p.adaptiveInterval(s, p.price.Value())
	}
	switch {
	case state.NotFound && !state.HasContent():
		// A read registers any key, even if the upstream has no such entity. Then the entity has a
		// not-found result and no content, and gets the longest interval.
		every = max(every, p.config.MaxInterval, p.config.Tiers.Cold.Every)
	case state.NotFound:
		every = max(every, p.config.Tiers.Cold.Every)
	}
	return every
}

// adaptiveInterval returns the optimal interval of an entity at a price.
//
// Symbols: λ is the entity's number of changes a day, r its number of reads a day, T its interval
// in days, and x = λT. A read returns current content with the probability (1-e^-x)/x. One more
// check a day therefore adds r/λ · (1-e^-x(1+x)) current reads a day. The current reads of all
// entities together are at their maximum if one more call adds the same number of current reads for
// every entity. That number is the price, and a check takes "cost" calls. So x is the solution of
// 1-e^-x(1+x) = price·cost·λ/r. If an entity changes so often that no check is worth the price, there
// is no solution, and the interval is the upper bound.
//
// Example: with 1 change and 24 reads a day, cost 1 and a price of 1, the right side is 1/24; x is
// 0.32, so the interval is 7.7 hours.
func (p *Policy) adaptiveInterval(s activity, price float64) time.Duration {
	return time.Duration(p.adaptiveDays(s, price) * dayNanos)
}

// adaptiveDays returns the same interval as adaptiveInterval, in days. For a pinned entity it is at
// most the interval of the entity's tier.
func (p *Policy) adaptiveDays(s activity, price float64) float64 {
	shortest, longest := float64(p.config.MinInterval)/dayNanos, float64(p.config.MaxInterval)/dayNanos
	if s.maxInterval > 0 {
		longest = math.Min(longest, s.maxInterval)
	}
	λ := math.Max(s.changes, 1e-9)
	x := solve(price * p.cost * λ / (s.reads + priorReads/(float64(readsFade)/dayNanos)))
	return math.Max(math.Min(x/λ, longest), shortest)
}

// solve returns the x at which 1-e^-x(1+x) equals y; infinity if y is at least 1.
func solve(y float64) float64 {
	switch {
	case !(y > 0):
		return 0
	case y >= 1:
		return math.Inf(1)
	}
	// Newton's method needs a start value that is near the solution. This is sqrt(2y) for small y, and
	// z + ln(1+z) with z = -ln(1-y) for y near 1. The method iterates over ln x instead of x, so x
	// stays above 0.
	x := math.Sqrt(2 * y)
	if y > 0.5 {
		x = -math.Log1p(-y)
		x += math.Log1p(x)
	}
	for range 12 {
		e := math.Exp(-x)
		g := 1 - e*(1+x)
		if x < 1e-3 {
			g = x * x * (0.5 - x/3)
		}
		step := (g - y) / (x * x * e)
		x *= math.Exp(math.Max(-1, math.Min(1, -step)))
		if math.Abs(step) < 1e-5 {
			break
		}
	}
	return x
}

// observe adds an observation of a requested entity to the sample of the Price. The observation
// contains the time from the last check to the due time, not the time to the claim. The delay
// between due time and claim depends on the backlog only, and must not look like a longer interval
// of the entity.
func (p *Policy) observe(c entityHash, s activity, checked, due, now time.Time) {
	passed := 0.0
	if due.After(now) {
		due = now
	}
	if !checked.IsZero() && due.After(checked) && due.Sub(checked) < 2*maxInterval {
		passed = float64(p.clock.workAt(due)-p.clock.workAt(checked)) / dayNanos
	}
	p.price.observe(c, observation{policy: p, seen: s, passed: passed, at: now})
}
