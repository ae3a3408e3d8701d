package limiter

import (
	"math"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Share is the current maximum rate of one lane. PerSecond is 0 during a backoff, an open breaker,
// an emergency stop, a quiet period and the restoration of the day's count. It is infinite if only
// a limit on calls in flight applies.
type Share struct {
	PerSecond float64
	// Bounds are the limits that apply: windows and the day. They ignore
	// backoff, an open breaker and an emergency stop.
	Bounds []Bound
}

// BoundKind says which part of the quota limits the rate of a lane: a window, or the calls of the day.
type BoundKind int

// The kinds of bounds.
const (
	ByWindow BoundKind = iota // the lane's share of a window
	ByDay                     // the rest of the day's calls, spread over the rest of the day
)

// Bound is one limit of a lane, in calls per second.
type Bound struct {
	Kind      BoundKind
	Policy    string
	PerSecond float64
	// Reserved is the additional rate that only HIGH can use.
	Reserved float64
}

// LowPerSecond returns the current maximum rate of LOW. It is the lowest of these rates: LOW's share
// of each window, and the rest of the day's calls divided by the rest of the day. It is 0 when
// Share.PerSecond is 0, for example during a backoff.
func (q Quota) LowPerSecond(v View) float64 { return q.share(schemas.Low, v).PerSecond }

// HighPerSecond returns the maximum rate of HIGH by the windows of the quota, or +Inf if the
// quota has no windows. It ignores day policies, backoff, an open breaker and stops.
func (l *Limiter) HighPerSecond() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.alloc.active.quota.highPerSecond()
}

// maxRateWindow is the longest window that determines a rate. A longer window limits the sum of
// calls, not the rate; it determines the rate only if the quota has no shorter window.
const maxRateWindow = time.Minute

func (q Quota) highPerSecond() float64 {
	short, long := math.Inf(1), math.Inf(1)
	for _, b := range q.Bounds() {
		window := time.Duration(b.Window)
		switch perSecond := b.PerWindow * q.calls(b) / window.Seconds(); {
		case b.Window == Day:
		case window <= maxRateWindow:
			short = min(short, perSecond)
		default:
			long = min(long, perSecond)
		}
	}
	if math.IsInf(short, 1) {
		return long
	}
	return short
}

// LowReserve returns the calls per second that are reserved for LOW, or 0.
func (l *Limiter) LowReserve() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	reserve := 0.0
	for _, p := range l.alloc.active.quota.config.Policies {
		if reserved := float64(p.LowReserve) / time.Duration(p.Window).Seconds(); p.LowReserve > 0 && (reserve == 0 || reserved < reserve) {
			reserve = reserved
		}
	}
	return reserve
}

// share returns the current maximum rate of a lane. The day policy spreads LOW's calls over the
// rest of the day. The day policy limits HIGH only when the day's calls are used up.
func (q Quota) share(lane schemas.Lane, v View) Share {
	var s Share
	low := lane == schemas.Low
	for _, b := range q.Bounds() {
		if b.Window == Day {
			continue
		}
		perUnit := v.RampRatio * q.calls(b) / time.Duration(b.Window).Seconds()
		bound := Bound{Kind: ByWindow, Policy: b.Name, PerSecond: b.PerWindow * perUnit}
		if low {
			bound.PerSecond, bound.Reserved = b.Low*perUnit, (b.PerWindow-b.Low)*perUnit
		}
		s.Bounds = append(s.Bounds, bound)
	}
	for _, p := range v.Policies {
		switch {
		case p.ResetsAt == nil:
		case low:
			rest := max(1, p.ResetsAt.Sub(v.At).Seconds())
			s.Bounds = append(s.Bounds, Bound{ByDay, p.Name, float64(p.RemainingForLow) / rest, float64(p.Remaining-p.RemainingForLow) / rest})
		case p.Remaining <= 0:
			s.Bounds = append(s.Bounds, Bound{Kind: ByDay, Policy: p.Name})
		}
	}
	if !v.State.AllowsCalls() {
		return s
	}
	s.PerSecond = math.Inf(1)
	for _, b := range s.Bounds {
		s.PerSecond = max(0, min(s.PerSecond, b.PerSecond))
	}
	return s
}

// calls returns the number of calls of the source that correspond to one unit of a bucket of the
// policy. This is the number of values of the scope, divided by the cost of the cheapest call.
func (q Quota) calls(b PolicyBound) float64 {
	for _, s := range q.scoped {
		if s.policy.Name == b.Name {
			return q.values(s) / float64(s.cheapest)
		}
	}
	return 1
}
