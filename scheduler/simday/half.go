package main

import (
	"math"
	"time"

	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/store/prefetched"
)

// Bounds of the interval in the policy "change age / 2", in seconds. They equal the default bounds
// of the adaptive mode.
const (
	minHalfAge = 30 * 60.0
	maxHalfAge = 7 * 86400.0
)

// nextHalfAge decides on a due entity by the policy "change age / 2", the baseline for the adaptive
// mode. The interval of an entity is half the time since its last change. These intervals alone
// would not match a budget, so all of them are multiplied by g.stretch (see adjustStretch). Unlike
// the other policies, this policy knows the result of a check before it computes the next due time.
func (g *simulation) nextHalfAge(c prefetched.Candidate, e *simEntity, now time.Time) prefetched.Decision {
	d := prefetched.Decision{Tier: c.Tier, History: c.History, Enqueue: true}
	second := seconds(now)
	if float64(second-e.checked) < g.halfAgeInterval(e)/2 {
		d.Enqueue = false
		d.Due = timeAt(g.halfAgeDue(e, e.checked))
	}
	return d
}

// halfAgeDue returns the next due time of an entity that is checked at the time `second`. Both times
// are in seconds since epoch.
func (g *simulation) halfAgeDue(e *simEntity, second int32) int32 {
	due := second + int32(g.halfAgeInterval(e)*(0.95+0.1*g.rng.Float64()))
	if g.policy.ContentNotReady(timeAt(due)) {
		due += 2 * 3600
	}
	return due
}

func (g *simulation) halfAgeInterval(e *simEntity) float64 {
	return math.Min(math.Max(float64(e.checked-e.updated)/2*g.stretch, minHalfAge), maxHalfAge)
}

// adjustStretch sets g.stretch, the factor by which all intervals are multiplied. It searches by
// bisection for the factor at which the entities need load.PerDay × g.aim calls a day. For each
// factor it estimates the calls from a sample of the entities. g.aim starts at 1, rises while budget
// is idle, and falls while there is a backlog.
func (g *simulation) adjustStretch(load scheduler.Load) {
	g.aim *= math.Exp(0.02 * (load.Unused - math.Min(load.Backlog.Hours(), 1)))
	g.aim = math.Min(math.Max(g.aim, 0.1), 10)
	low, high := math.Log(1e-4), math.Log(1e4)
	step := max(1, len(g.all)/2048)
	for range 16 {
		mid := (low + high) / 2
		g.stretch = math.Exp(mid)
		sum, n := 0.0, 0
		for i := 0; i < len(g.all); i += step {
			sum += 86400 / g.halfAgeInterval(&g.all[i])
			n++
		}
		if sum*float64(len(g.all))/float64(n) > load.PerDay*g.aim {
			low = mid
		} else {
			high = mid
		}
	}
}
