package limiter

import (
	"math"
	"slices"
	"time"
)

// WaitEstimate describes the waiting time of a new call of HIGH, as far as the limiter knows it.
type WaitEstimate struct {
	// Stopped: calls are stopped, and nobody knows for how long.
	Stopped bool
	// Delay is after what time the next call may go at the earliest.
	Delay time.Duration
	// PerSecond is how many calls of HIGH may go in a second after that; infinite where
	// nothing bounds them.
	PerSecond float64
}

// Wait returns how long a call waits behind so many others, at least.
func (o WaitEstimate) Wait(before int64) time.Duration {
	seconds := min(float64(before)/o.PerSecond, math.MaxInt32)
	return o.Delay + time.Duration(seconds*float64(time.Second))
}

// EstimateWait returns when HIGH may call again: after a stop of all calls, a day whose budget is
// used up, and a policy of which no value of its scope has anything left.
func (q Quota) EstimateWait(v View) WaitEstimate {
	o := WaitEstimate{Stopped: v.State == "stopped", PerSecond: q.highPerSecond()}
	until := v.At
	if v.Until != nil && slices.Contains([]string{"backing-off", stateBreakerOpen, stateQuietPeriod}, v.State) {
		until = *v.Until
	}
	for _, p := range v.Policies {
		if p.ResetsAt != nil && p.Remaining <= 0 {
			until = later(until, p.ResetsAt.Add(dayMargin))
		}
	}
	for _, s := range q.scoped {
		until = later(until, s.roomAt(v, q.values(s)))
	}
	o.Delay = until.Sub(v.At)
	return o
}

// roomAt returns when a policy of which every value is used up or halted has room again: the
// zero time if one has room now, or may have.
func (s scopedPolicy) roomAt(v View, values float64) time.Time {
	var first time.Time
	known := 0.0
	for _, at := range v.Scopes {
		if at.Policy != s.policy.Name {
			continue
		}
		empty := at.BreakerOpen || at.Remaining != nil && *at.Remaining <= 0 && (s.kind == reportedKind || s.kind == logKind)
		if !empty || at.Until == nil || at.InFlight > 0 && !at.BreakerOpen {
			return time.Time{}
		}
		known++
		if first.IsZero() || at.Until.Before(first) {
			first = *at.Until
		}
	}
	if known < values {
		return time.Time{}
	}
	return first
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
