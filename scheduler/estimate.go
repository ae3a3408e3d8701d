package scheduler

import (
	"math"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

// Decay times of the counts in an entity's history: older events lose their weight exponentially.
// readsFade applies to reads. The decay time of changes is changesFade plus fadeChecks times the time
// since the previous claim. Without the second term, the estimate for a rarely checked entity would
// depend on too few checks.
const (
	fadeChecks  = 3
	changesFade = 7 * 24 * time.Hour
	readsFade   = 3 * 24 * time.Hour
)

// Every entity starts with these assumed observations: in 0.4 days, 0.1 changes and 0.1 reads. They
// keep the estimated rates above 0, and have little weight after a few real observations.
const (
	priorChanges = 0.1
	priorWatched = 0.4 // days of observation that each new entity starts with
	priorReads   = 0.1 // number of reads that each new entity starts with
)

// activity contains the estimated change rate and read rate of an entity.
type activity struct {
	changes float64 // estimated number of changes a day
	reads   float64 // estimated number of reads a day
	// maxInterval is the interval of a pinned tier, in days; 0 means not pinned.
	maxInterval float64
}

const dayNanos = float64(wholeDay)

func changeRate(h prefetched.History) float64 {
	n, days := h.Changes, float64(h.Watched)/dayNanos
	if !(n >= 0 && n < 1e9) || !(days >= 0) { // written with "not", so that it is also true if n or days is NaN
		n, days = 0, 0
	}
	return (n + priorChanges) / (days + priorWatched)
}

// updateHistory returns the updated history and the estimated rates of an entity that is requested
// now.
//
// A check only shows whether the content has changed since the previous check, not how often. If
// each check that found a change counted as one change, the rate of an entity that changes often
// would be underestimated. The error would grow with the interval. So a check that found a change
// counts as x/(1-e^-x) changes, where x is the estimated rate times the time since the previous
// check. That is the expected number of changes if there was at least one. Doing this at every check
// is expectation maximisation: the estimated rate converges to the maximum likelihood estimate, also
// if the intervals between checks are irregular.
//
// Example: at a rate of 2 changes a day and a daily check, x = 2, and a found change counts as
// 2/(1-e^-2) = 2.31 changes.
func updateHistory(c prefetched.Candidate, now time.Time) (prefetched.History, activity) {
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

// updateHistory returns the results of the function updateHistory. For a pinned entity it also sets
// activity.maxInterval to the interval of the entity's tier.
func (p *Policy) updateHistory(c prefetched.Candidate, now time.Time) (prefetched.History, activity) {
	h, s := updateHistory(c, now)
	if c.Pinned {
		s.maxInterval = float64(p.tier(c.Tier).Every) / dayNanos
	}
	return h, s
}

// readRate returns the estimated reads a day of an entity, and its number of reads after the decay.
// `passed` is the time since the last claim; `known` is false if there was no claim before. At a claim
// all reads decay for the whole time since the last claim, even reads that happened a moment ago. The
// returned rate is corrected for that. The correction is exact if the time between two claims is
// constant.
func readRate(h prefetched.History, passed time.Duration, known bool) (rate, left float64) {
	if !(h.Reads >= 0 && h.Reads < 1e12) {
		return 0, 0
	}
	if !known {
		return h.Reads / (float64(readsFade) / dayNanos), h.Reads
	}
	faded := -math.Expm1(-float64(passed) / float64(readsFade))
	return h.Reads * faded / (float64(passed) / dayNanos), h.Reads * (1 - faded)
}

// tierByReads returns the tier of an entity: for a pinned entity its pinned tier, otherwise the
// tier of its read rate. An entity moves to a hotter tier at once. It moves to a colder tier only
// if its read rate falls below half of the minimum of its current tier.
func (p *Policy) tierByReads(r prefetched.RegisteredEntity, s activity) prefetched.Tier {
	from, hot, warm := r.Tier, p.config.Tiers.Hot.Reads, p.config.Tiers.Warm.Reads
	switch {
	case r.Pinned:
		return r.Tier
	case s.reads >= hot || (from == prefetched.Hot && s.reads >= hot/2):
		return prefetched.Hot
	case s.reads >= warm || (from <= prefetched.Warm && s.reads >= warm/2):
		return prefetched.Warm
	}
	return prefetched.Cold
}

// readsMakeDue reports whether an entity becomes due at once because its reads have risen from
// `before` to `after`. In the mode "tiers", an unpinned entity becomes due if it enters a hotter tier.
// In the mode "adaptive", any entity becomes due if its reads pass the minimum of the tier warm or
// hot. `before` and `after` are decayed numbers of reads. At a steady read rate the decayed number
// equals the reads of one decay time (readsFade). So it is compared with the tier's minimum (in reads
// a day) times readsFade (in days).
func (p *Policy) readsMakeDue(r prefetched.RegisteredEntity, before, after float64) bool {
	passes := func(perDay float64) bool {
		enough := perDay * float64(readsFade) / dayNanos
		return before < enough && after >= enough
	}
	warm, hot := p.config.Tiers.Warm.Reads, p.config.Tiers.Hot.Reads
	switch {
	case p.config.Mode == Adaptive:
		return passes(warm) || passes(hot)
	case r.Pinned || r.Tier == prefetched.Hot:
		return false
	case r.Tier == prefetched.Warm:
		return passes(hot)
	default:
		return passes(warm)
	}
}
