package limiter

import (
	"math"
	"slices"
	"time"
)

// WaitEstimate estimates how long new HIGH calls wait for their permits.
type WaitEstimate struct {
	// At is when the limiter's state was read, by Redis' clock.
	At time.Time
	// Blocked is empty while the source sends calls. While it sends none, Blocked is StateStopped,
	// StateBreakerOpen or StateBackingOff, and the wait is unknown, because it depends on an operator
	// or on the upstream.
	Blocked State
	// BlockedFor is the time until the backoff ends or the next probe is sent; 0 means unknown.
	BlockedFor time.Duration
	// Delay is the time until the next call can be sent.
	Delay time.Duration

	limits []waitLimit
}

// waitLimit is the throughput that one policy allows HIGH.
type waitLimit struct {
	remaining float64 // number of calls that can be sent now
	perSecond float64 // number of calls that can be sent in each later second; used only if resets is 0
	// If resets is greater than 0, the policy allows perPeriod further calls after the time resets, and
	// again after each further period.
	resets, period time.Duration
	perPeriod      float64
}

// after returns the time until a call can be sent if `before` other calls are sent first.
func (l waitLimit) after(before float64) time.Duration {
	over := before - l.remaining
	switch {
	case l.resets > 0 && over < 0:
		return 0
	case l.resets > 0:
		return l.resets + time.Duration(min(math.Floor(over/max(1, l.perPeriod))*l.period.Seconds(), math.MaxInt32)*float64(time.Second))
	default:
		return time.Duration(min(max(0, over)/l.perSecond, math.MaxInt32) * float64(time.Second))
	}
}

// Wait returns how long a call still waits if `before` other calls are served first. `age` is the time
// since the limiter's state was read. `served` is the time for which these other calls have been
// served already.
func (o WaitEstimate) Wait(before float64, age, served time.Duration) time.Duration {
	delay := max(0, o.Delay-age)
	queue, reset := time.Duration(0), time.Duration(0)
	for _, l := range o.limits {
		if l.resets > 0 {
			reset = max(reset, l.after(before)-age)
		} else {
			queue = max(queue, l.after(before))
		}
	}
	if delay == 0 {
		queue -= served
	}
	return max(0, delay+queue, reset)
}

// AtMost returns the estimate for a source whose workers make at most perSecond calls.
func (o WaitEstimate) AtMost(perSecond float64) WaitEstimate {
	o.limits = append(slices.Clip(o.limits), waitLimit{perSecond: perSecond})
	return o
}

// Paced reports whether anything limits the number of calls over time. Otherwise Wait returns
// only the time until the first call is possible, because it does not know the limits of calls in flight.
func (o WaitEstimate) Paced() bool { return len(o.limits) > 0 }

// EstimateWait estimates the wait of HIGH. It considers backoff, an open breaker, the remaining
// calls of windows, days and reported limits, and scoped policies without remaining units for any
// value.
func (q Quota) EstimateWait(v View) WaitEstimate {
	o := WaitEstimate{At: v.At}
	until := v.At
	if slices.Contains([]State{StateStopped, StateBackingOff, StateBreakerOpen}, v.State) {
		if o.Blocked = v.State; v.Until != nil {
			o.BlockedFor = max(0, v.Until.Sub(v.At))
		}
	}
	if v.Until != nil && slices.Contains([]State{StateBackingOff, StateBreakerOpen, StateQuietPeriod}, v.State) {
		until = *v.Until
	}
	remaining := map[string]float64{}
	for _, p := range v.Policies {
		remaining[p.Name] = float64(p.Remaining)
		if p.ResetsAt == nil {
			continue
		}
		if p.Remaining <= 0 {
			until = later(until, p.ResetsAt.Add(dayMargin))
		}
		if q.day != nil {
			o.limits = append(o.limits, waitLimit{
				remaining: float64(p.Remaining), resets: p.ResetsAt.Add(dayMargin).Sub(v.At),
				period: 24 * time.Hour, perPeriod: float64(q.day.policy.Limit),
			})
		}
	}
	for _, l := range q.partitioned {
		o.limits = append(o.limits, waitLimit{remaining: remaining[l.policy.Name], perSecond: v.RampRatio * l.highPerSecond()})
	}
	for _, r := range q.windowLogs {
		o.limits = append(o.limits, waitLimit{remaining: remaining[r.policy.Name], perSecond: v.RampRatio * float64(r.high) / r.reach.Seconds()})
	}
	for _, s := range q.scoped {
		if l, ok := q.scopedLimit(s, v); ok {
			o.limits = append(o.limits, l)
		}
		until = later(until, s.roomAt(v, q.values(s)))
	}
	o.Delay = until.Sub(v.At)
	return o
}

// highPerSecond returns the rate of the partitions that HIGH can use.
func (l partitionedWindow) highPerSecond() float64 {
	perSecond := 0.0
	for _, p := range l.partitions[:2] {
		if p.interval > 0 {
			perSecond += 1 / p.interval.Seconds()
		}
	}
	return perSecond
}

// scopedLimit returns the throughput of all buckets of a policy together. A bucket without a known
// state counts as unused. `ok` is false for policies without a rate, and for scopes whose number of
// values is unlimited.
func (q Quota) scopedLimit(s scopedPolicy, v View) (l waitLimit, ok bool) {
	bound, ok := s.bound()
	values := q.values(s)
	if !ok || math.IsInf(values, 1) {
		return l, false
	}
	cheapest := float64(s.cheapest)
	window := time.Duration(bound.Window)
	l.perSecond = values * bound.PerWindow / cheapest / window.Seconds()
	if s.kind() == minIntervalKind {
		return l, true
	}
	unknown, reset := values, time.Time{}
	for _, at := range v.Scopes {
		if at.Policy != s.policy.Name || at.Remaining == nil {
			continue
		}
		unknown--
		if !at.BreakerOpen {
			l.remaining += float64(*at.Remaining) / cheapest
		}
		if at.Until != nil && (reset.IsZero() || at.Until.Before(reset)) {
			reset = *at.Until
		}
	}
	l.remaining += max(0, unknown) * bound.PerWindow / cheapest
	if s.kind() == reportedKind && unknown <= 0 && reset.After(v.At) {
		l.resets, l.period, l.perPeriod = reset.Sub(v.At), window, values*bound.PerWindow/cheapest
	}
	return l, true
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
		empty := at.BreakerOpen || at.Remaining != nil && *at.Remaining <= 0 && (s.kind() == reportedKind || s.kind() == unitLogKind)
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
