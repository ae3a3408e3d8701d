package virtual

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
)

// The limits that apply in an hour without faults.
const (
	maxRetryDelay = 10 * time.Minute // maximum time from the due time of a retry to the publication of its request
	// maximum time until another process takes over an expired claim, and until an outbox event is
	// delivered
	maxClaimDelay = 10 * time.Minute
	// maximum time from the due time of an entity to its claim; it is long because the LOW lane has few
	// calls
	maxDueDelay    = 6 * time.Hour
	maxHighWait    = time.Hour // maximum age of a HIGH record that is not committed
	maxRefreshWait = 3 * time.Hour
)

// lostCheck checks that the result of each committed record is in the database or in the dead-letter
// topic. This must be true at any time, because a worker writes the result before it commits the
// offset.
type lostCheck struct {
	open    []*record        // committed records whose result was not found yet
	highest map[string]int64 // highest version of the HIGH records of each key
}

func newLostCheck() *lostCheck { return &lostCheck{highest: map[string]int64{}} }

func (l *lostCheck) judge(s *state) (violations []string) {
	for _, r := range s.records {
		if r.Lane == schemas.High {
			l.highest[r.Key] = max(l.highest[r.Key], r.Version)
		}
	}
	open := append(l.open, s.records...)
	l.open = nil
	for _, r := range open {
		switch {
		case s.committed[r.partition] <= r.offset:
			l.open = append(l.open, r)
			if age := s.now.Sub(r.RequestedAt); s.calm && r.Lane == schemas.High && age > maxHighWait && !s.exhausted() {
				violations = append(violations, fmt.Sprintf("%s %s of %s, version %d, waits since %v", r.Lane, r.Reason, r.Key, r.Version, s.w.since(r.RequestedAt)))
			}
		case !l.ended(s, r):
			violations = append(violations, fmt.Sprintf("%s %s of %s, version %d, requested at %v, is committed without an end: snapshot %d, status %s %d",
				r.Lane, r.Reason, r.Key, r.Version, s.w.since(r.RequestedAt), s.snapshots[r.Key].version, s.statuses[r.Key].state, s.statuses[r.Key].version))
		}
	}
	for _, r := range s.refreshes {
		if s.calm && s.now.Sub(r.at) > maxRefreshWait && !s.refreshed(r) && !s.exhausted() {
			violations = append(violations, fmt.Sprintf("the refresh of %s that was accepted at %v has no end", r.key, s.w.since(r.at)))
		}
	}
	return violations
}

// ended reports whether a committed record has ended: a fetch that is not older than the request is
// stored or has failed, or a HIGH record with a higher version replaces it.
func (l *lostCheck) ended(s *state, r *record) bool {
	f := s.statuses[r.Key]
	return s.snapshots[r.Key].version >= r.Version || f.version >= r.Version || s.deadLetters[r.recordID] ||
		r.Lane == schemas.Low && l.highest[r.Key] > r.Version ||
		(f.state == "FAILED" || f.state == "SUSPENDED") && f.until.After(r.RequestedAt)
}

// refreshed reports whether a refresh has ended.
func (s *state) refreshed(r refresh) bool {
	f := s.statuses[r.key]
	return !s.snapshots[r.key].checked.Before(r.at.Truncate(time.Microsecond)) || f.state != "RETRYING" && f.updated.After(r.at)
}

// exhausted reports whether the calls of the day may be used up, so that requests wait until midnight.
// It returns true as soon as half of the calls were made. The reason: if Redis loses its data, freshet
// counts calls that it has never sent, and so uses less than the full number.
func (s *state) exhausted() bool { return s.callsToday > dayLimit/2 }

func judgeOrder(s *state) []string { return s.regressions }

// contractCheck checks that the upstream's limits are kept: in each sliding window, on each calendar
// day, and for calls in flight.
type contractCheck struct {
	calls []time.Time
	days  map[string]int
}

func (c *contractCheck) judge(s *state) (violations []string) {
	if c.days == nil {
		c.days = map[string]int{day(s.w.start): s.usedBefore}
	}
	for i, call := range s.calls {
		c.calls = append(c.calls, call.at)
		for _, w := range []struct {
			limit  int
			length time.Duration
		}{{secondLimit, time.Second}, {minuteLimit, time.Minute}} {
			if n := len(c.calls); n > w.limit && call.at.Sub(c.calls[n-1-w.limit]) <= w.length {
				violations = append(violations, fmt.Sprintf("%d calls within %v until %v", w.limit+1, call.at.Sub(c.calls[n-1-w.limit]), s.w.since(call.at)))
			}
		}
		d := day(call.at)
		if c.days[d]++; c.days[d] == dayLimit+1 {
			violations = append(violations, fmt.Sprintf("more than %d calls on %s, from %v on", dayLimit, d, s.w.since(call.at)))
		}
		if n := inFlight(s.calls[:i+1]); n > inFlightLimit {
			violations = append(violations, fmt.Sprintf("%d calls in flight at %v", n, s.w.since(call.at)))
		}
	}
	return violations
}

// inFlight returns the number of calls in flight at the arrival of the last call. It does not count a
// call that ends at the same instant of the virtual clock, because the process may have sent the last
// call when it received this response.
func inFlight(calls []call) (n int) {
	at := calls[len(calls)-1].at
	for _, c := range calls[max(0, len(calls)-100):] {
		if c.end.IsZero() || c.end.After(at) {
			n++
		}
	}
	return n
}

// judgeLocks checks that no entity has a confirmed lock if the lock's record is committed. A worker
// releases the lock before it commits the offset.
func judgeLocks(s *state) (violations []string) {
	committed := map[string]map[int64]bool{}
	for _, r := range s.records {
		if s.committed[r.partition] > r.offset {
			if committed[r.Key] == nil {
				committed[r.Key] = map[int64]bool{}
			}
			committed[r.Key][r.Version] = true
		}
	}
	for _, l := range s.locks {
		if l.state == "CONFIRMED" && committed[l.key][l.version] {
			violations = append(violations, fmt.Sprintf("the lock of %s with version %d is left of a committed record", l.key, l.version))
		}
	}
	return violations
}

// ledgerCheck checks two rules: the committed offset of a partition never decreases, and it is never
// beyond the end of the partition.
type ledgerCheck struct{ committed map[partition]int64 }

func (l *ledgerCheck) judge(s *state) (violations []string) {
	for p, offset := range s.committed {
		if offset < l.committed[p] {
			violations = append(violations, fmt.Sprintf("the committed offset of %v fell from %d to %d", p, l.committed[p], offset))
		}
		if offset > s.ends[p] {
			violations = append(violations, fmt.Sprintf("the committed offset of %v is %d, and its end offset is %d", p, offset, s.ends[p]))
		}
		l.committed[p] = offset
	}
	return violations
}

// judgeCursors checks that no work has been due for too long. It applies only to hours without faults.
func judgeCursors(s *state) (violations []string) {
	if !s.calm || s.exhausted() {
		return nil
	}
	for _, of := range []struct {
		n    int
		what string
		late time.Duration
	}{
		{s.overdue.retries, "retries", maxRetryDelay},
		{s.overdue.claims, "claims of schedulers", maxClaimDelay},
		{s.overdue.events, "outbox events", maxClaimDelay},
		{s.overdue.entities, "entities", maxDueDelay},
	} {
		if of.n > 0 {
			violations = append(violations, fmt.Sprintf("%d %s are overdue by more than %v", of.n, of.what, of.late))
		}
	}
	return violations
}
