package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

// blockerScope is the set of calls that a blocker prevents.
type blockerScope int

const (
	scopeSource blockerScope = iota // the blocker blocks all calls of the source
	scopeLane                       // the blocker blocks the calls of one lane
	scopeFirst                      // the blocker blocks only the call of the lane's oldest request, which has waited for a long time
	scopePart                       // the blocker blocks the calls of one scope of a policy, for example of one credential
)

// blocker is a condition that prevents upstream calls. Message describes the condition as a part of
// a sentence.
type blocker struct {
	Message, Tone string
	Scope         blockerScope
}

const (
	// minExhaustedWindow is the shortest window whose exhaustion is reported. The calls of a
	// shorter window become available again before an operator could react.
	minExhaustedWindow = time.Hour
	// longWait is the minimum time that the oldest request of a lane must have waited to be
	// reported. A request that waits only behind earlier requests is sent in a shorter time. So a
	// wait of longWait or more is caused by a limit.
	longWait = 10 * time.Second
	// maxPartsNamed is the maximum number of blocked scopes that a message names. The page of the
	// limiter lists all of them.
	maxPartsNamed = 3
	// yieldThreshold is the number of waiting HIGH records above which workers process no LOW
	// records (package consumer).
	yieldThreshold = 1000
)

// blockersOf returns the conditions that prevent calls of a lane, the worst first.
func blockersOf(v *limiter.View, lane schemas.Lane, now time.Time) []blocker {
	if v == nil {
		return nil
	}
	var all []blocker
	if !v.State.AllowsCalls() {
		all = append(all, blocker{stateMessage(v, now), limiterState(v).Tone, scopeSource})
	}
	for _, p := range v.Policies {
		if h, waits := exhausted(p, lane, now); waits {
			all = append(all, h)
		}
	}
	if h, waits := firstWaiter(v, lane); waits && v.State.AllowsCalls() { // a long wait is added only if the source's state allows calls; if it allows none, the state explains the wait
		all = append(all, h)
	}
	if h, waits := openScopes(v.Scopes, now); waits {
		all = append(all, h)
	}
	if h, waits := exhaustedScopes(v.Scopes, now); waits {
		all = append(all, h)
	}
	return all
}

// longWindow returns the name of a policy's window, such as "the day", if the window is at least
// minExhaustedWindow long.
func longWindow(p limiter.PolicyView) (name string, long bool) {
	if p.Window == limiter.Day.String() {
		return "the day", true
	}
	window, err := time.ParseDuration(p.Window)
	return windowName(window), err == nil && window >= minExhaustedWindow
}

// exhausted returns a blocker if a policy has no calls left for the lane. The second result is
// false if calls are left, if the usage is unknown, or if the policy has no window of at least
// minExhaustedWindow.
func exhausted(p limiter.PolicyView, lane schemas.Lane, now time.Time) (blocker, bool) {
	of, long := longWindow(p)
	// The usage is unknown (always with GCRA, which allows the next call in a moment), or the window
	// is short.
	if p.Used == nil || !long {
		return blocker{}, false
	}
	until := ""
	if p.ResetsAt != nil {
		until = "; it resets at " + formatTime(*p.ResetsAt, now)
	}
	switch {
	case p.Remaining == 0:
		return blocker{fmt.Sprintf("all %s calls of %s are used up%s", formatCount(p.Limit), of, until), toneBad, scopeSource}, true
	case lane == schemas.Low && p.RemainingForLow == 0:
		return blocker{fmt.Sprintf("LOW has used up its share of %s, and the %s remaining calls are reserved for HIGH%s", of, formatCount(p.Remaining), until), toneWarn, scopeLane}, true
	}
	return blocker{}, false
}

// firstWaiter returns a blocker if the oldest request of the lane has waited for longWait or more.
func firstWaiter(v *limiter.View, lane schemas.Lane) (blocker, bool) {
	longest, why := time.Duration(0), limiter.WaitReason("")
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
	return blocker{fmt.Sprintf("the oldest request of the %s lane has waited %s for %s", lane, formatDuration(longest), displayText(string(why), maxReasonShown)), toneWarn, scopeFirst}, true
}

// openScopes returns one blocker for all scopes with an open circuit breaker.
func openScopes(scopes []limiter.ScopeView, now time.Time) (b blocker, found bool) {
	return scopesBlocker(scopes, now, "scope has an open circuit breaker", "scopes have an open circuit breaker", func(s limiter.ScopeView) bool { return s.BreakerOpen })
}

// exhaustedScopes returns one blocker for all scopes that have no call left for a minute or longer.
func exhaustedScopes(scopes []limiter.ScopeView, now time.Time) (b blocker, found bool) {
	return scopesBlocker(scopes, now, "scope has no calls left", "scopes have no calls left", func(s limiter.ScopeView) bool {
		return !s.BreakerOpen && s.Remaining != nil && *s.Remaining == 0 && s.Until != nil && s.Until.Sub(now) >= time.Minute
	})
}

// scopesBlocker returns one blocker for all blocked scopes. Its message begins with their number
// and with the text `one` (for one scope) or `many` (for several scopes).
func scopesBlocker(scopes []limiter.ScopeView, now time.Time, one, many string, blocked func(limiter.ScopeView) bool) (b blocker, found bool) {
	var names []string
	n := 0
	for _, s := range scopes {
		if !blocked(s) {
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
	return blocker{plural(n, one, many) + ": " + strings.Join(names, ", "), toneWarn, scopePart}, n > 0
}

// allBlockers returns the blockers of both lanes, without duplicates.
func allBlockers(v *limiter.View, now time.Time) []blocker {
	all := blockersOf(v, schemas.High, now)
	for _, h := range blockersOf(v, schemas.Low, now) {
		if !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	return all
}

// stallReason returns the reason why no worker processes a lane, as ": reason" for the end of a
// sentence; empty: unknown. The tone (the colour of the text) is toneWarn if a limit or a rule
// blocks the lane on purpose, and otherwise toneBad.
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
