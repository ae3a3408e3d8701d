package lua_test

import (
	"slices"
	"testing"
)

// A caller that sends stricter partitions once an epoch must not be forgotten. The fast path does not
// record the quota of its caller, so it must not decide the calls of this caller.
func TestRevision_StricterPartitionsApplyWhileSent(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		strict := b.with(0, halfLanes, "")
		strict.awake()
		b.acquire(0, 0)
		const want = 7 + horizon/5_716 // the slots of the stricter partition within the horizon
		for n := range 4 {
			c.advance(epoch)
			if got := len(b.acquire(0, 500).low); got != want { // this call begins the next epoch
				t.Errorf("slots of LOW at once in epoch %d: got %d, want %d", n+1, got, want)
			}
			strict.acquire(1, 0)
		}
	})
}

func TestRevision_StopOfOneCallerStopsAll(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, _ *clock) {
		b.awake()
		stopped := b
		stopped.stopped = 1
		for _, caller := range []struct {
			name string
			bucket
		}{{"the stopped caller", stopped}, {"another caller", b}} {
			if g := caller.acquire(1, 1); len(g.all()) > 0 || g.refusalHigh != refusedByStop || g.refusalLow != refusedByStop {
				t.Errorf("%s: got %+v, want no slot and the reason %d", caller.name, g, refusedByStop)
			}
		}
	})
}

// A new revision keeps the arrival times of each window that it still has, at any place in the quota.
func TestRevision_ChangeKeepsTheTimesOfEachWindow(t *testing.T) {
	t.Parallel()
	first, second, third := partitions(second, nexonLanes), partitions(60*second, wideLanes), windowLog(5*second, 90, 80)
	for name, c := range map[string]struct {
		quota string
		order []int // numbers of the windows of the first quota, in the order of the new quota
	}{
		"the same windows":         {first + second + third, []int{0, 1}},
		"windows in another order": {third + second + first, []int{1, 0}},
		"without the first window": {second, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(b bucket, _ *clock) {
				b.lanes, b.more = nil, first+second
				b.awake()
				b.acquire(3, 2)
				tats, want := b.tats(), []int64(nil)
				for _, n := range c.order {
					want = append(want, tats[3*n:3*n+3]...)
				}
				b = b.with(1, nil, c.quota)
				b.acquire(0, 0)
				if got := b.tats(); !slices.Equal(got, want) {
					t.Errorf("arrival times after the change: got %v, want %v", got, want)
				}
			})
		})
	}
}
