package contract

import "time"

// logEntry is one charge or refund of an account.
type logEntry struct {
	at      time.Time
	units   float64 // charged units; negative for a refund
	refused bool
}

// record adds a charge. A refused call is not in flight, so its charge of a concurrency policy is
// refunded at once.
func (a *account) record(at time.Time, units float64, refused bool) {
	a.log = append(a.log, logEntry{at, units, refused})
	if refused && a.policy.kind == concurrency {
		a.log = append(a.log, logEntry{at, -units, true})
	}
}

// resetLog starts a new log that contains only the calls in flight.
func (a *account) resetLog(at time.Time) {
	inFlight := 0.0
	for _, e := range a.log {
		inFlight += e.units
	}
	a.log = nil
	if a.policy.kind == concurrency && inFlight > 0 {
		a.log = []logEntry{{at: at, units: inFlight}}
	}
}

// used returns the units of accepted calls. For a concurrency limit it returns unit-seconds:
// units times seconds in flight.
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

// maxInWindow returns the maximum number of units in one window according to the log. For a bucket
// it is the maximum of the taken minus the restored units, for a concurrency limit the maximum
// number of calls in flight.
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

// maxByWindow returns the largest sum of the units of consecutive entries in one window. The
// function `same` reports whether the entries `first` and `e` are in one window.
func maxByWindow(log []logEntry, same func(first, e logEntry) bool) float64 {
	first, maximum, sum := 0, 0.0, 0.0
	for i, e := range log {
		if !same(log[first], e) {
			first, sum = i, 0
		}
		sum += e.units
		maximum = max(maximum, sum)
	}
	return maximum
}

// maxSliding returns the largest sum of units in any closed window. It checks only the windows that
// end with an entry: any other window contains no more entries than the window of the same length
// that ends with its last entry.
func maxSliding(log []logEntry, window time.Duration) float64 {
	from, maximum, sum := 0, 0.0, 0.0
	for _, e := range log {
		sum += e.units
		for e.at.Sub(log[from].at) > window {
			sum -= log[from].units
			from++
		}
		maximum = max(maximum, sum)
	}
	return maximum
}

// maxOverRestored returns the largest sum of the units of consecutive entries, minus the units
// restored between the first and the last of these entries.
func maxOverRestored(log []logEntry, restore float64) float64 {
	maximum, run := 0.0, 0.0
	for i, e := range log {
		if i > 0 {
			run = max(0, run-e.at.Sub(log[i-1].at).Seconds()*restore)
		}
		run = max(0, run+e.units)
		maximum = max(maximum, run)
	}
	return maximum
}
