package scheduler

import (
	"math"
	"time"

	"github.com/freshet/freshet/store"
)

// Past times fade from a history: what is older than these counts little. Of what is
// seldom checked changesFade holds too few checks to tell anything; then it is fadeChecks
// intervals longer.
const (
	fadeChecks  = 3
	changesFade = 7 * 24 * time.Hour
	readsFade   = 3 * 24 * time.Hour
)

// What is believed of an entity before anything has been seen of it: a part of a change
// within a part of a time, and a part of a read. They weigh little beside what is seen,
// and keep both rates above nothing.
const (
	priorChanges = 0.1
	priorWatched = 0.4 // days
	priorReads   = 0.1 // within readsFade
)

// activity is what a history says of an entity; rates are per day.
type activity struct {
	changes float64 // how often it changes
	reads   float64 // how often it is read
	// maxInterval bounds the interval of an entity whose tier is pinned, in days; 0: nothing does.
	maxInterval float64
}

const dayNanos = float64(wholeDay)

func changeRate(h store.History) float64 {
	n, days := h.Changes, float64(h.Watched)/dayNanos
	if !(n >= 0 && n < 1e9) || !(days >= 0) { // so that a NaN fails too
		n, days = 0, 0
	}
	return (n + priorChanges) / (days + priorWatched)
}

// updateHistory returns the history of an entity that is asked for now, and what it says.
//
// Of a check it is only known whether something has changed at least once since the one
// before. Counting that as one change has what changes often look as if it changed once
// between any two checks, the more so the rarer it is checked. So each sighting counts
// as many changes as are to be expected where there was at least one: x/(1-e^-x) at a
// rate of x in that time. Where this stands still is the most likely rate (it is a step
// of expectation maximisation), also for checks at uneven distances.
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

// updateHistory is learn, and adds how the entity is pinned.
func (p *Policy) updateHistory(c store.Candidate, now time.Time) (store.History, activity) {
	h, s := updateHistory(c, now)
	if c.Pinned {
		s.maxInterval = float64(p.tier(c.Tier).Every) / dayNanos
	}
	return h, s
}

// readRate returns how often an entity is read in a day, and what is left of its reads.
// All reads fade at a claim, also those that have come since the last one; for an entity
// that is claimed at even distances the rate makes up for that exactly.
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

// tierByReads returns the tier of an entity: a pinned one, or that of its reads. It moves up at
// once, and down only when the reads have become half as many.
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

// readsMakeDue reports whether an entity has been read so much, since it was claimed last, that it
// must not wait until it is due. In tiers that is an unpinned entity that belongs into a higher
// one. In the adaptive mode, which has no tiers, it is any entity whose reads pass either of
// their thresholds. An entity that is read at a steady rate keeps as many reads as are made
// while they fade.
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
