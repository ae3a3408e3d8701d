package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// reach is what of a source waits for something.
type reach int

const (
	ofAll   reach = iota // every call
	ofLane               // those of one lane
	ofFirst              // the first of one lane: in a saturated one some call always does
	ofPart               // those that need a part of it
)

// hindrance is something that keeps calls from being made, in a clause.
type hindrance struct {
	Says, Tone string
	Of         reach
}

const (
	// usedUpFor is the shortest window that is worth a word when it is used up: a shorter
	// one is new before anybody has read of it.
	usedUpFor = time.Hour
	// firstWaits is from when on the first in a line waits long: by then it is for what
	// a lane may call, and not for its turn.
	firstWaits = 10 * time.Second
	// partsNamed are so many of the parts that wait; the limiter's page has all.
	partsNamed = 3
	// yieldsAbove is with how many records in HIGH a LOW that stands back goes on doing so
	// (package consumer).
	yieldsAbove = 1000
)

// waitsFor is what keeps the calls of a lane from being made now, the gravest first. Empty:
// nothing that is known.
func waitsFor(v *limiter.View, lane schemas.Lane, now time.Time) []hindrance {
	if v == nil {
		return nil
	}
	var all []hindrance
	if !goes(v.State) {
		all = append(all, hindrance{brakeSays(v, now), stateOf(v).Tone, ofAll})
	}
	for _, p := range v.Policies {
		if h, waits := usedUp(p, lane, now); waits {
			all = append(all, h)
		}
	}
	if h, waits := firstInLine(v, lane); waits && goes(v.State) { // otherwise it waits for what is said already
		all = append(all, h)
	}
	return append(all, partsWait(v.Scopes, now)...)
}

// usedUp says that a policy has nothing left for the lane.
func usedUp(p limiter.PolicyView, lane schemas.Lane, now time.Time) (hindrance, bool) {
	var of, until string
	if p.ResetsAt != nil {
		until = "; it is new at " + clock(*p.ResetsAt, now)
	}
	switch window, err := time.ParseDuration(p.Window); {
	case p.Used == nil: // nobody knows, or it is kept by lanes and there is more in a moment
		return hindrance{}, false
	case p.Window == limiter.Day.String():
		of = "the day"
	case err != nil || window < usedUpFor:
		return hindrance{}, false
	default:
		of = lastOf(window)
	}
	switch {
	case p.Remaining == 0:
		return hindrance{fmt.Sprintf("all %s calls of %s are used up%s", count(p.Limit), of, until), toneBad, ofAll}, true
	case lane == schemas.Low && p.RemainingForLow == 0:
		return hindrance{fmt.Sprintf("LOW has used up its share of %s, and the %s calls that are left are kept for HIGH%s", of, count(p.Remaining), until), toneWarn, ofLane}, true
	}
	return hindrance{}, false
}

// firstInLine says what the lane's first waits for, of that process where it waits longest.
func firstInLine(v *limiter.View, lane schemas.Lane) (hindrance, bool) {
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
	if longest < firstWaits {
		return hindrance{}, false
	}
	what := "for " + shown(why, reasonShown)
	if why == "rate cap" {
		what = "for the rate cap of this hour"
	}
	return hindrance{fmt.Sprintf("the first in the %s line has waited for %s %s", lane, span(longest), what), toneWarn, ofFirst}, true
}

// partsWait says which parts of a source are halted alone, and which have used up what is
// theirs.
func partsWait(scopes []limiter.ScopeView, now time.Time) (all []hindrance) {
	say := func(one, many string, waits func(s limiter.ScopeView) bool) {
		var names []string
		n := 0
		for _, s := range scopes {
			if !waits(s) {
				continue
			}
			if n++; n > partsNamed {
				continue
			}
			name := shown(s.Policy, reasonShown) + " of " + shown(s.Scope, reasonShown)
			if s.Until != nil && s.Until.After(now) {
				name += " until " + clock(*s.Until, now)
			}
			names = append(names, name)
		}
		if n > partsNamed {
			names = append(names, "and others, which the limiter's page has")
		}
		if n > 0 {
			all = append(all, hindrance{several(n, one, many) + ": " + strings.Join(names, ", "), toneWarn, ofPart})
		}
	}
	say("part is halted alone", "parts are halted alone", func(s limiter.ScopeView) bool { return s.BreakerOpen })
	say("part is used up", "parts are used up", func(s limiter.ScopeView) bool {
		return !s.BreakerOpen && s.Remaining != nil && *s.Remaining == 0 && s.Until != nil && s.Until.Sub(now) >= time.Minute
	})
	return all
}

// hindrances are those of a source: what both lanes wait for, and what each does.
func hindrances(v *limiter.View, now time.Time) []hindrance {
	all := waitsFor(v, schemas.High, now)
	for _, h := range waitsFor(v, schemas.Low, now) {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// whyStands says why nobody works on a lane, behind a colon, if that is known; what is told
// to keep all of it back is no fault of its own.
func whyStands(v *limiter.View, lanes []Lane, l Lane, now time.Time) (why, tone string) {
	if v != nil && len(v.Processes) == 0 {
		return ": no worker runs", toneBad
	}
	for _, h := range waitsFor(v, l.Lane, now) {
		if h.Of != ofPart {
			return ": " + h.Says, toneWarn
		}
	}
	for _, high := range lanes {
		if l.Lane == schemas.Low && high.Lane == schemas.High && high.Known && high.Records > yieldsAbove {
			return ": LOW stands back while HIGH has " + several(high.Records, "record", "records") + " to do", toneWarn
		}
	}
	return "", toneBad
}

// allowed is the part of the rate that may be called at now: nothing while all waits.
func allowed(v *limiter.View, now time.Time) float64 {
	if slices.ContainsFunc(waitsFor(v, schemas.High, now), func(h hindrance) bool { return h.Of == ofAll }) {
		return 0
	}
	return v.RampRatio
}
