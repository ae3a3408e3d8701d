package limiter

import (
	"math"
	"slices"
	"time"
)

// WaitEstimate estimates how long a new HIGH call waits for its permit.
type WaitEstimate struct {
	// Blocked is StateStopped, StateBreakerOpen or StateBackingOff while the source sends no calls;
	// empty: it sends calls. The wait is then unknown, because it depends on an operator or on the
	// upstream.
	Blocked State
	// BlockedFor is the time until the backoff ends or the next probe is sent; 0: unknown.
	BlockedFor time.Duration
	// Delay is the time until the next call can be sent.
	Delay time.Duration
	// PerSecond is the rate of HIGH after the delay; +Inf if no policy limits it.
	PerSecond float64
}

// Wait returns the minimum time that a call waits if `before` other calls are served first.
func (o WaitEstimate) Wait(before int64) time.Duration {
	seconds := min(float64(before)/o.PerSecond, math.MaxInt32)
	return o.Delay + time.Duration(seconds*float64(time.Second))
}

// EstimateWait estimates the wait of HIGH. It considers backoff, an open breaker, used-up days,
// and scoped policies without remaining units for any value.
func (q Quota) EstimateWait(v View) WaitEstimate {
	o := WaitEstimate{PerSecond: q.highPerSecond()}
	until := v.At
	if slices.Contains([]State{StateStopped, StateBackingOff, StateBreakerOpen}, v.State) {
		if o.Blocked = v.State; v.Until != nil {
			o.BlockedFor = max(0, v.Until.Sub(v.At))
		}
	}
	if v.Until != nil && slices.Contains([]State{StateBackingOff, StateBreakerOpen, StateQuietPeriod}, v.State) {
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

// roomAt returns the earliest time at which a bucket of the policy has room again, if all buckets
// of the policy are exhausted or have open breakers. It returns the zero time if a bucket has
// room now, or if the state of one of the `values` buckets is unknown.
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
