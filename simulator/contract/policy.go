package contract

import (
	"math/rand/v2"
	"time"
)

// kind is how a policy counts.
type kind uint8

const (
	sliding     kind = iota // in any closed window
	fixed                   // in windows that begin with the first call after the one before
	aligned                 // in windows that follow each other without a gap
	bucket                  // a stock that is restored continuously
	concurrency             // calls in flight
	minInterval             // the time between two calls
)

// Units of policies.
const (
	requests   = "requests"
	points     = "points"
	tokens     = "tokens"
	concurrent = "concurrent-requests"
)

// policy is one limit of a contract, as it is enforced: with Speed in it.
type policy struct {
	name, unit string
	kind       kind
	limit      float64
	window     time.Duration // of a bucket: in which it fills
	offset     time.Duration // of aligned windows: how much later than UTC's they begin
	strict     bool          // charges what is refused, too
}

// short is the length below which windows are not accelerated.
const short = 10 * time.Second

// policyMaker makes the policies of one upstream and holds what chance decides there.
type policyMaker struct {
	speed    float64
	seed     uint64
	switches map[Switch]float64
	rng      *rand.Rand
}

// accelerated is a duration of the real API as it is here.
func (m *policyMaker) accelerated(d time.Duration) time.Duration {
	if d < short {
		return d
	}
	return time.Duration(float64(d) / m.speed)
}

// window limits units in windows of that kind, unless a switch wants another.
func (m *policyMaker) window(k kind, name, unit string, limit float64, length time.Duration) *policy {
	switch {
	case m.switches[FixedWindows] > 0:
		k = fixed
	case m.switches[SlidingWindows] > 0:
		k = sliding
	}
	return &policy{name: name, unit: unit, kind: k, limit: limit, window: m.accelerated(length)}
}

// day limits requests in calendar days of a zone, given by what it is ahead of
// UTC. An accelerated day begins at midnight and follows the one before.
func (m *policyMaker) day(name string, limit float64, ahead time.Duration) *policy {
	return &policy{name: name, unit: requests, kind: aligned, limit: limit, window: m.accelerated(24 * time.Hour), offset: -ahead}
}

// bucket holds up to limit units and restores so many a second.
func (m *policyMaker) bucket(name, unit string, limit, restore float64) *policy {
	full := time.Duration(limit / restore * float64(time.Second))
	return &policy{name: name, unit: unit, kind: bucket, limit: limit, window: m.accelerated(full)}
}

func (m *policyMaker) concurrency(name string, limit float64) *policy {
	return &policy{name: name, unit: concurrent, kind: concurrency, limit: limit}
}

// minInterval keeps calls apart. It also counts from what it refused.
func (m *policyMaker) minInterval(name string, least time.Duration) *policy {
	return &policy{name: name, unit: requests, kind: minInterval, limit: 1, window: least, strict: true}
}

// restore is what a bucket gets back a second.
func (p *policy) restore() float64 { return p.limit / p.window.Seconds() }

// span says what the limit is for, in words.
func (p *policy) span() string {
	switch p.kind {
	case bucket:
		return "filled in " + p.window.String()
	case concurrency:
		return "in flight"
	default:
		return p.window.String()
	}
}

// budget is the most units that could have been used from the first call to
// the last. Of places it is in unit-seconds.
func (p *policy) budget(first, last time.Time) float64 {
	took := last.Sub(first)
	switch p.kind {
	case aligned:
		from, to := first.Add(-p.offset).UnixNano(), last.Add(-p.offset).UnixNano()
		return p.limit * float64(to/int64(p.window)-from/int64(p.window)+1)
	case bucket:
		return p.limit + p.restore()*took.Seconds()
	case concurrency:
		return p.limit * took.Seconds()
	default:
		return p.limit * float64(took/p.window+1)
	}
}
