package scheduler

import (
	"math"
	"time"

	"github.com/freshet/freshet/store"
)

// intervalOf returns the interval of an entity.
func (p *Policy) intervalOf(tier store.Tier, s activity, state store.State) time.Duration {
	every := p.tier(tier).Every
	if p.config.Mode == Adaptive {
		every = p.adaptiveInterval(s, p.price.Value())
	}
	switch { // what there is not is looked for now and then
	case state.Absent && !state.HasContent(): // and what there never was, rarely: anybody may ask for any key
		every = max(every, p.config.MaxInterval, p.config.Tiers.Cold.Every)
	case state.Absent:
		every = max(every, p.config.Tiers.Cold.Every)
	}
	return every
}

// adaptiveInterval returns the best interval of an entity at a price.
//
// Where an entity changes λ times a day and is checked every T days, a reader sees the
// present content with a chance of (1-e^-x)/x, x = λT. One check a day more is worth to
// its r readers a day r/λ · (1-e^-x(1+x)). The reads that see the present are the most
// that the budget allows where a call more is worth the same for every entity: that is
// the price. So 1-e^-x(1+x) = price·cost·λ/r. What changes so often that no check is
// worth its price has none of its own; it is checked as seldom as the bounds allow.
func (p *Policy) adaptiveInterval(s activity, price float64) time.Duration {
	return time.Duration(p.adaptiveDays(s, price) * dayNanos)
}

// adaptiveDays returns the interval in days. That of a pinned tier is never longer than its tier's.
func (p *Policy) adaptiveDays(s activity, price float64) float64 {
	least, most := float64(p.config.MinInterval)/dayNanos, float64(p.config.MaxInterval)/dayNanos
	if s.maxInterval > 0 {
		most = math.Min(most, s.maxInterval)
	}
	λ := math.Max(s.changes, 1e-9)
	x := solve(price * p.cost * λ / (s.reads + priorReads/(float64(readsFade)/dayNanos)))
	return math.Max(math.Min(x/λ, most), least)
}

// solve returns the x at which 1-e^-x(1+x) is y; infinity if y is not below 1.
func solve(y float64) float64 {
	switch {
	case !(y > 0):
		return 0
	case y >= 1:
		return math.Inf(1)
	}
	// The start is right at both ends; Newton's steps from there rise or fall
	// towards the root, in ln x, where the function has no flat part.
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

// observe tells the price of an entity that is asked for. What has passed since its check
// counts until it was due: how late it comes says nothing of how rare it is.
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
