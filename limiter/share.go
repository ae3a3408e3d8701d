package limiter

import (
	"math"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
)

// Share is how many calls a lane may make in a second as it stands now: 0 while no call is
// made at all, infinite where nothing but the number of calls in flight bounds it.
type Share struct {
	PerSecond float64
	// Bounds are what it is bounded by, as if there were no brake or stop: the windows, the
	// hour's rate cap and the day, those that there are.
	Bounds []Bound
}

// BoundKind says what bounds a lane.
type BoundKind int

// The kinds of bounds.
const (
	ByWindow  BoundKind = iota // its share of a policy's window
	ByRateCap                  // LOW's rate cap at this hour
	ByDay                      // what the day has left, spread over the rest of it
)

// Bound is one of the things that bound a lane, in calls a second.
type Bound struct {
	Kind      BoundKind
	Policy    string // its name; empty for a rate cap
	PerSecond float64
	// Reserved is what HIGH alone may use besides.
	Reserved float64
}

// LowPerSecond returns how many calls LOW may make in a second as it stands now: by its
// share of each window, by the hour's rate cap and by what is left of the day. It is 0
// while no call is made at all.
func (q Quota) LowPerSecond(v View) float64 { return q.share(schemas.Low, v).PerSecond }

// HighPerSecond returns how many calls HIGH may make in a second by the windows of the quota in
// force; infinite where none bounds it. A day, a brake and a stop do not count.
func (l *Limiter) HighPerSecond() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.quota.highPerSecond()
}

// maxRateWindow is the longest window that counts for a rate: calls use up a longer one at the
// rate of the others. It counts where there is no other.
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

// LowReserve returns how many calls a second the quota in force keeps for LOW; 0: none.
func (l *Limiter) LowReserve() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	reserve := 0.0
	for _, p := range l.quota.config.Policies {
		if kept := float64(p.LowReserve) / time.Duration(p.Window).Seconds(); p.LowReserve > 0 && (reserve == 0 || kept < reserve) {
			reserve = kept
		}
	}
	return reserve
}

// share returns what a lane may do. The day bounds HIGH only when nothing is left of it: it
// may use all of it at any time.
func (q Quota) share(lane schemas.Lane, v View) Share {
	var s Share
	low := lane == schemas.Low
	for _, b := range q.Bounds() {
		if b.Window == Day {
			continue
		}
		aSecond := v.RampRatio * q.calls(b) / time.Duration(b.Window).Seconds()
		bound := Bound{Kind: ByWindow, Policy: b.Name, PerSecond: b.PerWindow * aSecond}
		if low {
			bound.PerSecond, bound.Reserved = b.Low*aSecond, (b.PerWindow-b.Low)*aSecond
		}
		s.Bounds = append(s.Bounds, bound)
	}
	if interval := q.rateCapInterval(v.At); low && interval > 0 {
		s.Bounds = append(s.Bounds, Bound{Kind: ByRateCap, PerSecond: float64(time.Second) / float64(interval)})
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
	if slices.Contains([]string{"stopped", "backing-off", stateBreakerOpen, stateRestoringCount, stateQuietPeriod}, v.State) {
		return s
	}
	s.PerSecond = math.Inf(1)
	for _, b := range s.Bounds {
		s.PerSecond = max(0, min(s.PerSecond, b.PerSecond))
	}
	return s
}

// calls returns how many calls, over all values of the policy's scope, a unit of what it
// allows comes to.
func (q Quota) calls(b PolicyBound) float64 {
	for _, s := range q.scoped {
		if s.policy.Name == b.Name {
			return q.values(s) / float64(s.cheapest)
		}
	}
	return 1
}
