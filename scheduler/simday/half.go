package main

import (
	"math"
	"time"

	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/store"
)

// The bounds of change age / 2 are those of the adaptive mode.
const (
	halfLeast = 30 * 60.0
	halfMost  = 7 * 86400.0
)

// halfNext is the rule that the adaptive mode is measured by: come again after half of
// the time that has passed since the last change. It knows no budget; so that it has the
// same one, all its intervals are stretched alike. It is told what a check has found
// before it says when the next one is, which the others are not.
func (g *game) halfNext(c store.Candidate, e *one, now time.Time) store.Decision {
	m := store.Decision{Tier: c.Tier, History: c.History, Enqueue: true}
	second := seconds(now)
	if float64(second-e.checked) < g.every(e)/2 {
		m.Enqueue = false
		m.Due = moment(g.halfDue(e, e.checked))
	}
	return m
}

// halfDue returns when an entity comes that was checked at a second.
func (g *game) halfDue(e *one, second int32) int32 {
	due := second + int32(g.every(e)*(0.95+0.1*g.rng.Float64()))
	if g.policy.ContentNotReady(moment(due)) {
		due += 2 * 3600
	}
	return due
}

func (g *game) every(e *one) float64 {
	return math.Min(math.Max(float64(e.checked-e.updated)/2*g.stretch, halfLeast), halfMost)
}

// adjustStretch finds the stretch at which a sample takes what there is, and aims a little
// higher or lower while the budget is not used or much is behind.
func (g *game) adjustStretch(load scheduler.Load) {
	g.aim *= math.Exp(0.02 * (load.Unused - math.Min(load.Backlog.Hours(), 1)))
	g.aim = math.Min(math.Max(g.aim, 0.1), 10)
	low, high := math.Log(1e-4), math.Log(1e4)
	step := max(1, len(g.all)/2048)
	for range 16 {
		mid := (low + high) / 2
		g.stretch = math.Exp(mid)
		sum, n := 0.0, 0
		for i := 0; i < len(g.all); i += step {
			sum += 86400 / g.every(&g.all[i])
			n++
		}
		if sum*float64(len(g.all))/float64(n) > load.PerDay*g.aim {
			low = mid
		} else {
			high = mid
		}
	}
}
