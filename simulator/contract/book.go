package contract

import "time"

// entry is one line of the record of an account.
type entry struct {
	at      time.Time
	units   float64 // negative for what was given back
	refused bool
}

// note writes down what arrived. A refused call held no place for any time.
func (a *account) note(at time.Time, units float64, refused bool) {
	a.log = append(a.log, entry{at, units, refused})
	if refused && a.policy.kind == places {
		a.log = append(a.log, entry{at, -units, true})
	}
}

// forget ends the record and begins another, with what is still in flight.
func (a *account) forget(at time.Time) {
	held := 0.0
	for _, e := range a.log {
		held += e.units
	}
	a.log = nil
	if a.policy.kind == places && held > 0 {
		a.log = []entry{{at: at, units: held}}
	}
}

// used is what accepted calls took: units, or unit-seconds of places.
func (a *account) used() float64 {
	sum, area := 0.0, 0.0
	for i, e := range a.log {
		if i > 0 {
			area += sum * e.at.Sub(a.log[i-1].at).Seconds()
		}
		if !e.refused {
			sum += e.units
		}
	}
	if a.policy.kind == places {
		return area
	}
	return max(0, sum)
}

// most is the greatest number of units in one window, as the record has it. Of
// a bucket it is the greatest number beyond what was restored meanwhile, of
// places the most in flight at once.
func (a *account) most(log []entry) float64 {
	switch p := a.policy; p.kind {
	case fixed:
		return mostInTurn(log, func(first, e entry) bool { return e.at.Sub(first.at) < p.window })
	case aligned:
		number := func(e entry) int64 { return e.at.Add(-p.offset).UnixNano() / int64(p.window) }
		return mostInTurn(log, func(first, e entry) bool { return number(first) == number(e) })
	case bucket:
		return mostBeyond(log, p.restore())
	case places:
		return mostBeyond(log, 0)
	case gap:
		return mostWithin(log, p.window-1)
	default:
		return mostWithin(log, p.window)
	}
}

// mostInTurn adds up groups of entries that follow each other.
func mostInTurn(log []entry, same func(first, e entry) bool) float64 {
	first, most, sum := 0, 0.0, 0.0
	for i, e := range log {
		if !same(log[first], e) {
			first, sum = i, 0
		}
		sum += e.units
		most = max(most, sum)
	}
	return most
}

// mostWithin is the greatest sum over any closed window: over those that end
// with an entry, for any other can be moved back to its last.
func mostWithin(log []entry, window time.Duration) float64 {
	from, most, sum := 0, 0.0, 0.0
	for _, e := range log {
		sum += e.units
		for e.at.Sub(log[from].at) > window {
			sum -= log[from].units
			from++
		}
		most = max(most, sum)
	}
	return most
}

// mostBeyond is the greatest sum over any run of entries less what was restored
// from its first to its last.
func mostBeyond(log []entry, restore float64) float64 {
	most, run := 0.0, 0.0
	for i, e := range log {
		if i > 0 {
			run = max(0, run-e.at.Sub(log[i-1].at).Seconds()*restore)
		}
		run = max(0, run+e.units)
		most = max(most, run)
	}
	return most
}
