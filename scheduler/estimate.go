package scheduler

import (
	"math"
	"time"

	"github.com/freshet/freshet/store"
)

// Decay times of the history. Older observations lose their weight exponentially. For a rarely
// checked entity changesFade covers too few checks, so it is extended by fadeChecks intervals.
const (
	fadeChecks  = 3
	changesFade = 7 * 24 * time.Hour
	readsFade   = 3 * 24 * time.Hour
)

// Prior observations of an entity: a part of a change within a part of a day, and a part of a read.
// They keep both rates above 0, and have little weight beside real observations.
const (
	priorChanges = 0.1
	priorWatched = 0.4 // days
	priorReads   = 0.1 // within readsFade
)

// activity holds the estimated rates of an entity, per day.
type activity struct {
	changes float64 // changes a day
	reads   float64 // reads a day
	// maxInterval is the interval of a pinned tier, in days; 0: not pinned.
	maxInterval float64
}

const dayNanos = float64(wholeDay)

func changeRate(h store.History) float64 {
	n, days := h.Changes, float64(h.Watched)/dayNanos
	if !(n >= 0 && n < 1e9) || !(days >= 0) { // also NaN
		n, days = 0, 0
	}
	return (n + priorChanges) / (days + priorWatched)
}

// updateHistory returns the history of an entity that is requested now, and its rates.
//
// A check only shows whether at least one change happened since the check before. Counting it as
// one change underestimates an entity that changes often, more so the rarer it is checked. So a
// check that found a change counts as the expected number of changes, given at least one:
// x/(1-e^-x), where x is the estimated rate times the interval. This is a step of expectation
// maximisation; its fixed point is the maximum likelihood estimate, also at irregular intervals.
//
// Example: at a rate of 2 changes a day and a daily check, x = 2, and a found change counts as
// 2/(1-e^-2) = 2.31.
func updateHistory(c store.Candidate, now time.Time) (store.History, activity) {
	h := c.History
	passed := now.Sub(h.ClaimedAt)
	known := !h.ClaimedAt.IsZero() && passed > 0
	if passed > maxInterval {
		passed = maxInterval
	}
	if known && !c.State.CheckedAt.Before(h.ClaimedAt) {
		keep := math.Exp(-float64(passed) / float64(changesFade+fadeChecks*passed))
		changed := 0.0
		if !h.UpdatedAt.IsZero() && c.State.UpdatedAt.After(h.UpdatedAt) {
			x := changeRate(h) * float64(passed) / dayNanos
			changed = 1
			if x > 1e-6 {
				changed = x / -math.Expm1(-x)
			}
		}
		if !(h.Changes >= 0 && h.Changes < 1e9) || h.Watched < 0 {
			h.Changes, h.Watched = 0, 0
		}
		h.Changes = math.Min(h.Changes*keep+changed, 1e6)
		h.Watched = time.Duration(float64(min(h.Watched, maxInterval))*keep) + passed
	}
	s := activity{changes: changeRate(h)}
	s.reads, h.Reads = readRate(h, passed, known)
	h.ClaimedAt, h.ReadAt, h.UpdatedAt = now, now, c.State.UpdatedAt
	return h, s
}

// updateHistory is the function updateHistory plus the interval of a pinned tier.
func (p *Policy) updateHistory(c store.Candidate, now time.Time) (store.History, activity) {
	h, s := updateHistory(c, now)
	if c.Pinned {
		s.maxInterval = float64(p.tier(c.Tier).Every) / dayNanos
	}
	return h, s
}

// readRate returns the reads a day of an entity, and the remaining weight of its reads. All reads
// decay at a claim, also those since the last claim. For an entity that is claimed at even
// intervals the rate compensates for that exactly.
func readRate(h store.History, passed time.Duration, known bool) (rate, left float64) {
	if !(h.Reads >= 0 && h.Reads < 1e12) {
		return 0, 0
	}
	if !known {
		return h.Reads / (float64(readsFade) / dayNanos), h.Reads
	}
	faded := -math.Expm1(-float64(passed) / float64(readsFade))
	return h.Reads * faded / (float64(passed) / dayNanos), h.Reads * (1 - faded)
}

// tierByReads returns the tier of an entity: the pinned one, or the one of its reads. It rises at
// once, and falls only when the reads have halved.
func (p *Policy) tierByReads(r store.RegisteredEntity, s activity) store.Tier {
	from, hot, warm := r.Tier, p.config.Tiers.Hot.Reads, p.config.Tiers.Warm.Reads
	switch {
	case r.Pinned:
		return r.Tier
	case s.reads >= hot || (from == store.Hot && s.reads >= hot/2):
		return store.Hot
	case s.reads >= warm || (from <= store.Warm && s.reads >= warm/2):
		return store.Warm
	}
	return store.Cold
}

// readsMakeDue reports whether the reads since the last claim make an entity due at once. In the
// mode tiers they do for an unpinned entity that enters a higher tier. In the adaptive mode they do
// for any entity whose reads pass one of the tier thresholds. At a steady rate an entity keeps the
// reads of one decay time.
func (p *Policy) readsMakeDue(r store.RegisteredEntity, before, after float64) bool {
	passes := func(perDay float64) bool {
		enough := perDay * float64(readsFade) / dayNanos
		return before < enough && after >= enough
	}
	warm, hot := p.config.Tiers.Warm.Reads, p.config.Tiers.Hot.Reads
	switch {
	case p.config.Mode == Adaptive:
		return passes(warm) || passes(hot)
	case r.Pinned || r.Tier == store.Hot:
		return false
	case r.Tier == store.Warm:
		return passes(hot)
	default:
		return passes(warm)
	}
}
