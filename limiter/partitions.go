package limiter

import (
	"fmt"
	"time"
)

// gcra is one partition of a window, a GCRA (generic cell rate algorithm). interval 0 means
// that the partition does not exist.
type gcra struct {
	interval time.Duration // time between two slots in whole microseconds (T in the package comment)
	burst    int           // number of slots that can be granted at once (B in the package comment)
}

// slots returns the largest number of time slots that the partition can grant in a window of this
// length, including both ends of the window.
func (l gcra) slots(window time.Duration) int {
	if l.interval == 0 {
		return 0
	}
	return l.burst + int(window/l.interval)
}

// partitionedWindow enforces a window of many calls with three GCRA partitions.
type partitionedWindow struct {
	policy     Policy
	window     time.Duration
	reach      time.Duration // window + a permit's lifetime + jitter (W + V + J in the package comment)
	partitions [3]gcra       // the partition for HIGH only, the shared partition and the partition for LOW only
}

func (l partitionedWindow) terms() partitionsTerms {
	t := func(p int) int64 { return l.partitions[p].interval.Microseconds() }
	b := func(p int) int64 { return int64(l.partitions[p].burst) }
	return partitionsTerms{newPolicyHead("partitions", l.window.Microseconds()), l.window.Microseconds(), t(0), b(0), t(1), b(1), t(2), b(2)}
}

// newPartitionedWindow returns the partitions of a window. It returns an error if the upstream
// could receive more calls than the limit; the error names the rate that would fit.
func newPartitionedWindow(p Policy, jitter time.Duration) (partitionedWindow, error) {
	window := time.Duration(p.Window)
	l := partitionedWindow{policy: p, window: window, reach: window + permitLife + jitter}
	if p.Target == 0 {
		l.fill()
	} else {
		l.aim()
	}
	if sum := l.bound(); sum > p.Limit {
		fitted := l.fitted()
		return partitionedWindow{}, fmt.Errorf("target: with %d, up to %d calls could reach the upstream within %v, "+
			"but its limit is %d (a permit lives %v, the jitter is %v); lower the target, or omit it to use %.4g",
			p.Target, sum, p.Window, p.Limit, permitLife, jitter, fitted.perWindow())
	}
	return l, nil
}

// fitted returns the window with the fastest partitions that the limit allows.
func (l partitionedWindow) fitted() partitionedWindow {
	l.partitions = [3]gcra{}
	l.fill()
	return l
}

// shares returns how many of the calls of a window each of the three partitions gets.
func (l partitionedWindow) shares(calls int) [3]int {
	high := l.policy.HighReserve.in(l.window)
	return [3]int{high, calls - high - l.policy.LowReserve, l.policy.LowReserve}
}

// aim sets the partitions' rates so that their sum is the configured target. Their bursts
// together are 5 % of the limit. The partition for HIGH gets a burst of a tenth of its calls per
// window, but at most half of the 5 %, because users' calls arrive in clusters. The partition for LOW
// gets a tenth of its calls too, but at most half of the remaining burst. The shared partition gets
// the rest.
func (l *partitionedWindow) aim() {
	rest := l.policy.Limit / 20
	for i, n := range l.shares(l.policy.Target) {
		if n == 0 {
			continue
		}
		burst := max(1, rest)
		if i != 1 {
			burst = max(1, min(n/10, rest/2))
			rest -= burst
		}
		l.partitions[i] = gcra{ceilMicros(l.window, n), burst}
	}
	// Now `rest` no longer contains the burst of the partition for LOW. It is the burst of the
	// shared partition.
	if low := l.partitions[2]; low.interval > 0 {
		l.partitions[1].burst = max(1, rest)
	}
}

// fill sets the partitions so that together they grant as many slots within l.reach as the limit
// allows. 5 % of the slots are burst. A partition with n slots and burst B has an interval just
// above reach / (n − B + 1).
func (l *partitionedWindow) fill() {
	for i, n := range l.shares(l.policy.Limit) {
		if n == 0 {
			continue
		}
		burst := max(1, n/20)
		l.partitions[i] = gcra{micros(l.reach.Microseconds()/int64(n-burst+1) + 1), burst}
	}
}

// ceilMicros returns window / n, rounded up to whole microseconds.
func ceilMicros(window time.Duration, n int) time.Duration {
	return micros((window.Microseconds() + int64(n) - 1) / int64(n))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// bound returns the largest number of calls that can reach the upstream within one window.
func (l partitionedWindow) bound() int {
	sum := 0
	for _, lane := range l.partitions {
		sum += lane.slots(l.reach)
	}
	return sum
}

// perWindow returns the calls per window that the partitions grant under constant demand.
func (l partitionedWindow) perWindow() float64 {
	calls := 0.0
	for _, lane := range l.partitions {
		if lane.interval > 0 {
			calls += float64(l.window) / float64(lane.interval)
		}
	}
	return calls
}
