package contract

import "time"

// logEntry is one line of the record of an account.
type logEntry struct {
	at      time.Time
	units   float64 // negative for what was given back
	refused bool
}

// record writes down what arrived. A refused call held no place for any time.
func (a *account) record(at time.Time, units float64, refused bool) {
	a.log = append(a.log, logEntry{at, units, refused})
	if refused && a.policy.kind == concurrency {
		a.log = append(a.log, logEntry{at, -units, true})
	}
}

// resetLog ends the record and begins another, with what is still in flight.
func (a *account) resetLog(at time.Time) {
	held := 0.0
	for _, e := range a.log {
		held += e.units
	}
	a.log = nil
	if a.policy.kind == concurrency && held > 0 {
		a.log = []logEntry{{at: at, units: held}}
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
	if a.policy.kind == concurrency {
		return area
	}
	return max(0, sum)
}

// maxInWindow is the greatest number of units in one window, as the record has it. Of
// a bucket it is the greatest number beyond what was restored meanwhile, of
// places the most in flight at once.
func (a *account) maxInWindow(log []logEntry) float64 {
	switch p := a.policy; p.kind {
	case fixed:
		return maxByWindow(log, func(first, e logEntry) bool { return e.at.Sub(first.at) < p.window })
	case aligned:
		number := func(e logEntry) int64 { return e.at.Add(-p.offset).UnixNano() / int64(p.window) }
		return maxByWindow(log, func(first, e logEntry) bool { return number(first) == number(e) })
	case bucket:
		return maxOverRestored(log, p.restore())
	case concurrency:
		return maxOverRestored(log, 0)
	case minInterval:
		return maxSliding(log, p.window-1)
	default:
		return maxSliding(log, p.window)
	}
}

// maxByWindow adds up groups of entries that follow each other.
func maxByWindow(log []logEntry, same func(first, e logEntry) bool) float64 {
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

// maxSliding is the greatest sum over any closed window: over those that end
// with an entry, for any other can be moved back to its last.
func maxSliding(log []logEntry, window time.Duration) float64 {
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

// maxOverRestored is the greatest sum over any run of entries less what was restored
// from its first to its last.
func maxOverRestored(log []logEntry, restore float64) float64 {
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
