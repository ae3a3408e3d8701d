package limiter

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// bucketRig takes units from one bucket.
type bucketRig struct {
	scriptRig
	bucket *bucket
	at     time.Time // the time of Redis' clock
}

// newBucketRig returns a rig with a bucket of the policy. All its units are free.
func newBucketRig(t *testing.T, p Policy) *bucketRig {
	t.Helper()
	config := scopedConfig(p)
	config.Breakers = nil
	r := &bucketRig{scriptRig: newScriptRig(t, config), at: time.UnixMilli(1_700_000_000_000)}
	r.bucket = r.firstBucket()
	r.take(1)
	r.at = r.at.Add(time.Hour)
	return r
}

// take requests n slots. It returns the granted slots, and the state of the bucket.
func (r *bucketRig) take(n int) (slots []int64, state bucketState) {
	r.Helper()
	_, g := r.send(r.at, n)
	for _, s := range g.queues[0].slots {
		slots = append(slots, g.now+s.wait)
	}
	return slots, g.states[r.bucket]
}

// apply sends an event, and returns the state of the bucket.
func (r *bucketRig) apply(e bucketEvent) bucketState {
	r.Helper()
	_, g := r.send(r.at, 0, e)
	return g.states[r.bucket]
}

// The key of a bucket expires one second after the time from which a bucket without state is the same. The key of
// a reported limit expires one minute after the lease, because reports can be late.
func TestScopes_UnusedBucketsExpire(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		want   time.Duration // after one call
	}{
		"log of a window":                {Policy{Limit: 20, Window: Window(time.Minute)}, time.Minute + permitLife + 10*ms + horizon + time.Second + ms},
		"leaky bucket, empty after 10 s": {Policy{Limit: 20, Restore: 0.1}, 10*time.Second + time.Second},
		"error budget of 2 units":        {Policy{Limit: 2, Window: Window(time.Minute), CountedStatuses: []int{403}}, 2*(time.Minute+permitLife+10*ms) + time.Second + ms},
		"minimum interval":               {Policy{MinInterval: &MinInterval{Min: 30 * time.Second}}, 30*time.Second + permitLife + 10*ms + time.Second},
		"reported limit":                 {Policy{Limit: 20, Window: Window(time.Minute), Reported: true}, 10*time.Second + time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			c.policy.Name, c.policy.Scope = "p", "all"
			r := newBucketRig(t, c.policy)
			if slots, _ := r.take(1); len(slots) != 1 {
				t.Fatalf("slots: got %d, want 1", len(slots))
			}
			if got := r.redis.TTL(r.bucket.key); got != c.want {
				t.Errorf("expiry of the bucket: got %v, want %v", got, c.want)
			}
		})
	}
}

// The units of a window are used up after a loss of state. They become free at the pace at which they can have
// been used before the loss, until the horizon after it: one unit in 20.3 ms, in steps of about 10 units.
func TestWindow_UnitsReturnAfterALoss(t *testing.T) {
	r := newBucketRig(t, Policy{Name: "window", Limit: 500, Window: Window(10 * time.Second), Scope: "all"})
	r.redis.FlushAll()
	lost := r.at
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{0, 0}, {500 * ms, 10}, {5 * time.Second, 227}, {10 * time.Second, 473}, {10150 * ms, 483}, {10300 * ms, 500}} {
		r.at = lost.Add(c.after)
		if got := r.apply(logRefundEvent(r.bucket, 0, 0)).remaining; got != c.want {
			t.Errorf("remaining units %v after the loss: got %d, want %d", c.after, got, c.want)
		}
	}
}

// A log has no entry of a call whose units are refunded.
func TestWindow_RefundRemovesTheEntry(t *testing.T) {
	r := newBucketRig(t, Policy{Name: "window", Limit: 20, Window: Window(time.Minute), Scope: "all"})
	slots, state := r.take(1)
	if got, want := state.until, slots[0]+(time.Minute+permitLife+10*ms).Microseconds()+1; got != want {
		t.Errorf("time of more units after a call: got %d, want %d", got, want)
	}
	if got, want := r.apply(logRefundEvent(r.bucket, slots[0], 1)), (bucketState{remaining: 20}); got != want {
		t.Errorf("state after the refund: got %+v, want %+v", got, want)
	}
}

// Every reply has the state of each bucket.
func TestScopes_ReplyHasTheStateOfBuckets(t *testing.T) {
	after := func(d time.Duration) int64 { return d.Microseconds() }
	reach := time.Minute + permitLife + 10*ms
	for name, c := range map[string]struct {
		policy      Policy
		first, then bucketState // after one call, and 40 s later after one more request; `until` from the first call
	}{
		"log of a window":  {Policy{Limit: 20, Window: Window(time.Minute)}, bucketState{19, 0, after(reach) + 1}, bucketState{18, 0, after(reach) + 1}},
		"leaky bucket":     {Policy{Limit: 20, Restore: 0.01}, bucketState{17, 0, 0}, bucketState{16, 0, 0}},
		"minimum interval": {Policy{MinInterval: &MinInterval{Min: 30 * time.Second}}, bucketState{0, 0, after(30050 * ms)}, bucketState{0, 0, after(70050 * ms)}},
		"calls in flight":  {Policy{Limit: 3, Window: InFlight, Lease: time.Minute}, bucketState{2, 1, 0}, bucketState{1, 2, 0}},
		"reported limit":   {Policy{Limit: 20, Window: Window(time.Minute), Reported: true}, bucketState{-1, 1, 0}, bucketState{-1, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			c.policy.Name, c.policy.Scope = "p", "all"
			r := newBucketRig(t, c.policy)
			start := r.at.UnixMicro()
			for i, want := range []bucketState{c.first, c.then} {
				_, got := r.take(1)
				if got.until > 0 {
					got.until -= start
				}
				if got != want {
					t.Errorf("state after request %d: got %+v, want %+v", i+1, got, want)
				}
				r.at = r.at.Add(40 * time.Second)
			}
		})
	}
}

// The newest quota that Redis has received applies to the calls of all processes, also of those with an older
// quota.
func TestScopes_NewestLimitAppliesToOlderQuotas(t *testing.T) {
	policy := Policy{Name: "window", Limit: 20, Window: Window(time.Minute), Scope: "all"}
	r := newBucketRig(t, policy)
	active := &r.limiter.alloc.active
	older := active.terms
	policy.Limit = 5
	quota, err := NewQuota(scopedConfig(policy))
	if err != nil {
		t.Fatal(err)
	}
	r.limiter.alloc.setQuota(quota, 1, false)
	r.take(1)
	active.terms = older
	if slots, _ := r.take(20); len(slots) != 4 {
		t.Errorf("slots of a process with an older limit of 20, after one call under the limit of 5: got %d, want 4", len(slots))
	}
}

// Half of the burst of a paced window is kept for HIGH.
func TestWindow_KeepsHalfTheBurstForHigh(t *testing.T) {
	for lane, want := range map[schemas.Lane]int{schemas.High: 10, schemas.Low: 5} {
		r := newBucketRig(t, Policy{Name: "window", Limit: 1000, Window: Window(10 * time.Second), Scope: "all", HighReserve: Reserve{Calls: 100}})
		r.line = r.limiter.alloc.queueFor(lane, Call{Endpoint: "f/d", Key: "k"})
		slots, _ := r.take(100)
		atOnce := 0
		for _, s := range slots {
			if s < r.at.Add(ms).UnixMicro() {
				atOnce++
			}
		}
		if atOnce != want {
			t.Errorf("slots of %s at once: got %d, want %d", lane, atOnce, want)
		}
	}
}

// The intervals between calls vary between the minimum and the maximum, also from one call to the next.
func TestMinInterval_VariesBetweenItsBounds(t *testing.T) {
	const least, most = 600 * ms, 1800 * ms
	r := newBucketRig(t, Policy{Name: "slow", MinInterval: &MinInterval{Min: least, Max: most}})
	var sum, changes, last time.Duration
	const n = 50
	for range n {
		_, state := r.take(1)
		interval := micros(state.until-r.at.UnixMicro()) - permitLife - 10*ms
		if interval < least || interval > most {
			t.Errorf("interval: got %v, want %v to %v", interval, least, most)
		}
		sum, changes, last = sum+interval, changes+max(interval-last, last-interval), interval
		r.at = time.UnixMicro(state.until)
	}
	if got := sum / n; got < 1050*ms || got > 1350*ms {
		t.Errorf("average interval: got %v, want about 1.2s", got)
	}
	if got, want := changes/n, 200*ms; got < want {
		t.Errorf("average change from one interval to the next: got %v, want at least %v", got, want)
	}
}
