package limiter

import (
	"fmt"
	"time"
)

// gcra is a GCRA; interval 0: there is no such lane.
type gcra struct {
	interval time.Duration // T, whole microseconds
	burst    int           // B
}

// slots returns the greatest number of slots in a closed window of that length.
func (l gcra) slots(window time.Duration) int {
	if l.interval == 0 {
		return 0
	}
	return l.burst + int(window/l.interval)
}

// partitionedWindow keep a window of many calls.
type partitionedWindow struct {
	policy     Policy
	window     time.Duration
	reach      time.Duration // W + V + J
	partitions [3]gcra       // high, shared, low
}

// newPartitionedWindow returns the lanes of a window, or an error that says what would be
// right if calls could reach the upstream faster than it allows.
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
		return partitionedWindow{}, fmt.Errorf("with target %d up to %d calls could reach the upstream within %v, "+
			"which allows %d (permits live %v, jitter is %v); lower the target, or leave it out to use %.4g",
			p.Target, sum, p.Window, p.Limit, permitLife, jitter, fitted.perWindow())
	}
	return l, nil
}

// fitted returns the lanes that use all the limit allows.
func (l partitionedWindow) fitted() partitionedWindow {
	l.partitions = [3]gcra{}
	l.fill()
	return l
}

// shares returns a number of calls a window split over the lanes.
func (l partitionedWindow) shares(calls int) [3]int {
	high := l.policy.HighReserve.in(l.window)
	return [3]int{high, calls - high - l.policy.LowReserve, l.policy.LowReserve}
}

// aim gives the lanes the rates of the target. A twentieth of the limit is their
// burst: high's is a tenth of a second's worth, so that people's calls, which
// come in clusters, seldom wait; the rest is shared's.
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
	if low := l.partitions[2]; low.interval > 0 { // shared came before low
		l.partitions[1].burst = max(1, rest)
	}
}

// fill gives the lanes all the slots that the limit allows within l.reach, with
// a twentieth of them as burst: a lane of n slots there has an interval just
// longer than reach / (n − B + 1).
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

// bound returns the greatest number of calls that can reach the upstream within
// its window.
func (l partitionedWindow) bound() int {
	sum := 0
	for _, lane := range l.partitions {
		sum += lane.slots(l.reach)
	}
	return sum
}

// perWindow returns the calls a window that saturated lanes give.
func (l partitionedWindow) perWindow() float64 {
	calls := 0.0
	for _, lane := range l.partitions {
		if lane.interval > 0 {
			calls += float64(l.window) / float64(lane.interval)
		}
	}
	return calls
}
