package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// blockerScope is what of a source waits for something.
type blockerScope int

const (
	scopeSource blockerScope = iota // every call
	scopeLane                       // those of one lane
	scopeFirst                      // the first of one lane: in a saturated one some call always does
	scopePart                       // requests that need a blocked scope of it
)

// blocker is something that keeps calls from being made, in a clause.
type blocker struct {
	Message, Tone string
	Scope         blockerScope
}

const (
	// minExhaustedWindow is the shortest window that is worth a word when it is used up: a shorter
	// one is new before anybody has read of it.
	minExhaustedWindow = time.Hour
	// longWait is from when on the first in a line waits long: by then it is for what
	// a lane may call, and not for its turn.
	longWait = 10 * time.Second
	// maxPartsNamed are so many of the parts that wait; the limiter's page has all.
	maxPartsNamed = 3
	// yieldThreshold is with how many records in HIGH a LOW that stands back goes on doing so
	// (package consumer).
	yieldThreshold = 1000
)

// blockersOf is what keeps the calls of a lane from being made now, the gravest first. Empty:
// nothing that is known.
func blockersOf(v *limiter.View, lane schemas.Lane, now time.Time) []blocker {
	if v == nil {
		return nil
	}
	var all []blocker
	if !callsAllowed(v.State) {
		all = append(all, blocker{brakeSays(v, now), limiterState(v).Tone, scopeSource})
	}
	for _, p := range v.Policies {
		if h, waits := exhausted(p, lane, now); waits {
			all = append(all, h)
		}
	}
	if h, waits := firstWaiter(v, lane); waits && callsAllowed(v.State) { // otherwise it waits for what is said already
		all = append(all, h)
	}
	return append(all, partBlockers(v.Scopes, now)...)
}

// exhausted says that a policy has nothing left for the lane.
func exhausted(p limiter.PolicyView, lane schemas.Lane, now time.Time) (blocker, bool) {
	var of, until string
	if p.ResetsAt != nil {
		until = "; it resets at " + formatTime(*p.ResetsAt, now)
	}
	switch window, err := time.ParseDuration(p.Window); {
	case p.Used == nil: // nobody knows, or it is kept by lanes and there is more in a moment
		return blocker{}, false
	case p.Window == limiter.Day.String():
		of = "the day"
	case err != nil || window < minExhaustedWindow:
		return blocker{}, false
	default:
		of = windowName(window)
	}
	switch {
	case p.Remaining == 0:
		return blocker{fmt.Sprintf("all %s calls of %s are used up%s", formatCount(p.Limit), of, until), toneBad, scopeSource}, true
	case lane == schemas.Low && p.RemainingForLow == 0:
		return blocker{fmt.Sprintf("LOW has used up its share of %s, and the %s remaining calls are reserved for HIGH%s", of, formatCount(p.Remaining), until), toneWarn, scopeLane}, true
	}
	return blocker{}, false
}

// firstWaiter says what the lane's first waits for, of that process where it waits longest.
func firstWaiter(v *limiter.View, lane schemas.Lane) (blocker, bool) {
	longest, why := time.Duration(0), ""
	for _, p := range v.Processes {
		l := p.Low
		if lane == schemas.High {
			l = p.High
		}
		if oldest := time.Duration(l.OldestMS * float64(time.Millisecond)); l.Waiting > 0 && l.Reason != "" && oldest > longest {
			longest, why = oldest, l.Reason
		}
	}
	if longest < longWait {
		return blocker{}, false
	}
	what := "for " + displayText(why, maxReasonShown)
	if why == "rate cap" {
		what = "for the rate cap of this hour"
	}
	return blocker{fmt.Sprintf("the oldest request of the %s lane has waited %s %s", lane, formatDuration(longest), what), toneWarn, scopeFirst}, true
}

// partBlockers says which parts of a source are breaker open, and which have used up what is
// theirs.
func partBlockers(scopes []limiter.ScopeView, now time.Time) (all []blocker) {
	say := func(one, many string, waits func(s limiter.ScopeView) bool) {
		var names []string
		n := 0
		for _, s := range scopes {
			if !waits(s) {
				continue
			}
			if n++; n > maxPartsNamed {
				continue
			}
			name := displayText(s.Policy, maxReasonShown) + " of " + displayText(s.Scope, maxReasonShown)
			if s.Until != nil && s.Until.After(now) {
				name += " until " + formatTime(*s.Until, now)
			}
			names = append(names, name)
		}
		if n > maxPartsNamed {
			names = append(names, "and more on the limiter page")
		}
		if n > 0 {
			all = append(all, blocker{plural(n, one, many) + ": " + strings.Join(names, ", "), toneWarn, scopePart})
		}
	}
	say("scope has an open circuit breaker", "scopes have an open circuit breaker", func(s limiter.ScopeView) bool { return s.BreakerOpen })
	say("scope is exhausted", "scopes are exhausted", func(s limiter.ScopeView) bool {
		return !s.BreakerOpen && s.Remaining != nil && *s.Remaining == 0 && s.Until != nil && s.Until.Sub(now) >= time.Minute
	})
	return all
}

// allBlockers are those of a source: what both lanes wait for, and what each does.
func allBlockers(v *limiter.View, now time.Time) []blocker {
	all := blockersOf(v, schemas.High, now)
	for _, h := range blockersOf(v, schemas.Low, now) {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// stallReason says why nobody works on a lane, behind a colon, if that is known; what is told
// to keep all of it back is no fault of its own.
func stallReason(v *limiter.View, lanes []LaneLag, l LaneLag, now time.Time) (why, tone string) {
	if v != nil && len(v.Processes) == 0 {
		return ": no worker is running", toneBad
	}
	for _, h := range blockersOf(v, l.Lane, now) {
		if h.Scope != scopePart {
			return ": " + h.Message, toneWarn
		}
	}
	for _, high := range lanes {
		if l.Lane == schemas.Low && high.Lane == schemas.High && high.RecordsKnown && high.Records > yieldThreshold {
			return ": LOW yields while HIGH has " + plural(high.Records, "record", "records") + " waiting", toneWarn
		}
	}
	return "", toneBad
}

// allowedFraction is the part of the rate that may be called at now: nothing while all waits.
func allowedFraction(v *limiter.View, now time.Time) float64 {
	if slices.ContainsFunc(blockersOf(v, schemas.High, now), func(h blocker) bool { return h.Scope == scopeSource }) {
		return 0
	}
	return v.RampRatio
}
