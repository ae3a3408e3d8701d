package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/status"
)

// rates contains the numbers of calls a second that the limiter has permitted recently, by lane.
// Known is false if they could not be measured.
type rates struct {
	High, Low float64
	Known     bool
}

// budgetMessage describes the remaining budget of a source in one sentence. v is the state of the
// limiter; nil: it could not be read.
func budgetMessage(source string, v *limiter.View, r rates, now time.Time) string {
	switch {
	case v == nil:
		return "The budget of " + source + " is unknown: the limiter could not be read. Without Redis no calls are made."
	case v.State == limiter.StateUnused:
		return source + " has not been called yet; all of its budget is left."
	case v.State == limiter.StateStopping && len(v.Policies) == 0:
		return source + " has not been called yet; " + stateMessage(v, now) + "."
	}
	var parts []string
	used := false
	for _, p := range v.Policies {
		window, err := time.ParseDuration(p.Window)
		switch {
		case p.Window == limiter.Day.String():
			parts = append(parts, dayLeft(p, now))
		case err != nil:
		case p.Used == nil && !used:
			used = true
			parts = append([]string{source + laneUsage(p, r, window)}, parts...)
		case p.Used != nil:
			parts = append(parts, fmt.Sprintf("%s of %s calls of %s are left", formatCount(p.Remaining), formatCount(p.Limit), windowName(window)))
		}
	}
	if !used {
		text := source + " is called at the rate that its limits allow"
		if r.Known {
			text = fmt.Sprintf("%s uses %s calls a second (HIGH %s, LOW %s)", source, formatRate(r.High+r.Low), formatRate(r.High), formatRate(r.Low))
		}
		parts = append([]string{text}, parts...)
	}
	parts = append(parts, stateMessage(v, now))
	if n := openBreakers(v.Scopes); n > 0 {
		parts = append(parts, plural(n, "scope has", "scopes have")+" an open circuit breaker")
	}
	if v.NewestRevision > v.Revision {
		parts = append(parts, "changed limits are not applied yet")
	}
	return strings.Join(parts, "; ") + "."
}

// laneUsage describes how many calls each lane makes, and how many calls a policy allows. Use it
// only for a policy that gives each lane its own part of the limit (GCRA).
func laneUsage(p limiter.PolicyView, r rates, window time.Duration) string {
	target := p.Target
	if target == 0 {
		target = p.Limit
	}
	if !r.Known {
		return fmt.Sprintf(" may use %s calls %s; its current rate appears in a few seconds", formatCount(target), perWindow(window))
	}
	of := window.Seconds()
	return fmt.Sprintf(" uses %s of %s calls %s (HIGH %s, LOW %s)", formatRate((r.High+r.Low)*of), formatCount(target), perWindow(window), formatRate(r.High*of), formatRate(r.Low*of))
}

func dayLeft(p limiter.PolicyView, now time.Time) string {
	if p.ResetsAt == nil {
		return "the remaining calls of the day are not known yet"
	}
	return fmt.Sprintf("%s of %s calls of the day are left for %s", formatCount(p.Remaining), formatCount(p.Limit), formatDuration(p.ResetsAt.Sub(now)))
}

// windows contains the names of the usual lengths of a window.
var windows = map[time.Duration]string{time.Second: "second", time.Minute: "minute", time.Hour: "hour"}

// perWindow formats the length of a window as the last words of a rate: "a second" in "450 calls a
// second", or "in 10 s" in "20 calls in 10 s".
func perWindow(window time.Duration) string {
	switch name := windows[window]; name {
	case "":
		return "in " + formatDuration(window)
	case "hour":
		return "an hour"
	default:
		return "a " + name
	}
}

func windowName(window time.Duration) string {
	if name := windows[window]; name != "" {
		return "the " + name
	}
	return formatDuration(window)
}

// stateMessage describes the state of a source's limiter. The result is a part of a sentence.
func stateMessage(v *limiter.View, now time.Time) string {
	return status.LimiterMessage(v, func(t time.Time) string { return formatTime(t, now) })
}

func openBreakers(all []limiter.ScopeView) int {
	n := 0
	for _, s := range all {
		if s.BreakerOpen {
			n++
		}
	}
	return n
}
