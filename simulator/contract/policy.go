package contract

import (
	"math/rand/v2"
	"time"
)

// kind is the algorithm of a policy.
type kind uint8

const (
	sliding     kind = iota // counts the units in any closed window
	fixed                   // counts the units in windows that begin with the first call after the previous window
	aligned                 // counts the units in consecutive windows of the clock, such as hours or calendar days
	bucket                  // takes units from a bucket that is restored continuously
	concurrency             // the policy limits the calls in flight
	minInterval             // requires a minimum interval between calls
)

// The units of policies.
const (
	requests   = "requests"
	points     = "points"
	tokens     = "tokens"
	concurrent = "concurrent-requests"
)

// policy is one limit of a contract. The field `window` has the length after Options.Speed is applied.
type policy struct {
	name, unit string
	kind       kind
	limit      float64
	window     time.Duration // length of a window; for a bucket the time in which it is filled
	offset     time.Duration // for the kind aligned: how much later than in UTC the windows begin
	strict     bool          // true: the policy charges refused calls too
}

// short is the length below which windows keep their real length. Options.Speed shortens longer
// windows, so that several of them pass during a test of a minute.
const short = 10 * time.Second

// policyMaker creates the policies of one upstream. It also holds the upstream's random number
// generator and its switches, which turn faults of the upstream on.
type policyMaker struct {
	speed    float64
	seed     uint64
	switches map[Switch]float64
	rng      *rand.Rand
}

// accelerated returns a duration of the real API divided by Speed.
func (m *policyMaker) accelerated(d time.Duration) time.Duration {
	if d < short {
		return d
	}
	return time.Duration(float64(d) / m.speed)
}

// window returns a policy with windows of the given kind, unless a switch overrides the kind.
func (m *policyMaker) window(k kind, name, unit string, limit float64, length time.Duration) *policy {
	switch {
	case m.switches[FixedWindows] > 0:
		k = fixed
	case m.switches[SlidingWindows] > 0:
		k = sliding
	}
	return &policy{name: name, unit: unit, kind: k, limit: limit, window: m.accelerated(length)}
}

// day returns a policy with calendar days in a time zone that is ahead of UTC. If Speed shortens
// the days, several short days follow each other without a gap. The first short day begins at
// midnight.
func (m *policyMaker) day(name string, limit float64, ahead time.Duration) *policy {
	return &policy{name: name, unit: requests, kind: aligned, limit: limit, window: m.accelerated(24 * time.Hour), offset: -ahead}
}

// bucket returns a policy that holds at most `limit` units. The parameter "restore" is the number of
// units that are restored per second.
func (m *policyMaker) bucket(name, unit string, limit, restore float64) *policy {
	full := time.Duration(limit / restore * float64(time.Second))
	return &policy{name: name, unit: unit, kind: bucket, limit: limit, window: m.accelerated(full)}
}

func (m *policyMaker) concurrency(name string, limit float64) *policy {
	return &policy{name: name, unit: concurrent, kind: concurrency, limit: limit}
}

// minInterval returns a policy with a minimum interval between calls. Refused calls count too.
func (m *policyMaker) minInterval(name string, interval time.Duration) *policy {
	return &policy{name: name, unit: requests, kind: minInterval, limit: 1, window: interval, strict: true}
}

// restore returns the restored units per second of a bucket.
func (p *policy) restore() float64 { return p.limit / p.window.Seconds() }

// span describes the window of the policy in words.
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

// budget returns the maximum number of units that calls could have used between the first call and
// the last. For a concurrency limit the unit is unit-seconds: units times seconds in flight.
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
