package limiter

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// leakyRig takes units from a leaky bucket of 18 units, of which one is restored per second. The bucket is
// full at the time `start`. (The policy has 20 units. The script keeps 2 of them, because calls can arrive
// later than their slots.)
type leakyRig struct {
	scriptRig
	bucket *bucket
	start  time.Time
}

func newLeakyRig(t *testing.T) *leakyRig { return newLeakyRigOf(t, 20) }

// newLeakyRigOf returns a rig with another limit of the policy.
func newLeakyRigOf(t *testing.T, limit int) *leakyRig {
	t.Helper()
	costs := map[string]int{}
	for units := range 18 {
		costs[endpointOf(units+1)] = units + 1
	}
	r := &leakyRig{scriptRig: newScriptRig(t, scopedConfig(Policy{Name: "bucket", Limit: limit, Restore: 1, Costs: costs}))}
	r.bucket = r.firstBucket()
	first := time.UnixMilli(1_700_000_000_000)
	r.send(first, 1)
	r.start = first.Add(time.Hour)
	return r
}

func endpointOf(units int) string { return fmt.Sprintf("f/%d", units) }

// take takes units for a call, and returns the call's slot.
func (r *leakyRig) take(at time.Duration, units int) (slot int64) {
	r.Helper()
	r.line = r.limiter.alloc.queueFor(schemas.High, Call{Endpoint: endpointOf(units), Key: "k"})
	_, g := r.send(r.start.Add(at), 1)
	if got := len(g.queues[0].slots); got != 1 {
		r.Fatalf("slots of a call of %d units after %v: got %d, want 1", units, at, got)
	}
	return g.now + g.queues[0].slots[0].wait
}

// remaining applies refunds, and returns the remaining units.
func (r *leakyRig) remaining(at time.Duration, refunds ...bucketEvent) int64 {
	r.Helper()
	if len(refunds) == 0 {
		refunds = append(refunds, bucketRefundEvent(r.bucket, 0, refundedNow))
	}
	_, g := r.send(r.start.Add(at), 0, refunds...)
	for _, state := range g.states {
		return state.remaining
	}
	r.Fatal("the reply has no state of the bucket")
	return 0
}

// A refund gives back only units that would not have leaked until now. If a later call found the bucket empty,
// all units of the refunded call had leaked before.
func TestLeakyBucket_RefundsUnitsThatHaveNotLeaked(t *testing.T) {
	type call struct {
		at       time.Duration
		units    int
		refunded bool // after the last call
	}
	series := func(n int, interval time.Duration) []call { // calls of one unit, of which the first is refunded
		calls := make([]call, n)
		for i := range calls {
			calls[i] = call{time.Duration(i) * interval, 1, i == 0}
		}
		return calls
	}
	const s = time.Second
	for name, c := range map[string]struct {
		calls []call
		want  int64
	}{
		"the only call":                        {[]call{{0, 3, true}}, 18},
		"the later call":                       {[]call{{0, 1, false}, {5 * s, 1, true}}, 18},
		"all calls of one time":                {[]call{{0, 3, true}, {0, 1, true}, {0, 1, true}}, 18},
		"calls of the whole bucket":            {[]call{{0, 18, true}, {18 * s, 18, true}}, 18},
		"later call found it empty":            {[]call{{0, 1, true}, {5 * s, 1, false}}, 17},
		"later call found one unit":            {[]call{{0, 3, true}, {2 * s, 1, false}}, 17},
		"two calls, then one unit":             {[]call{{0, 2, true}, {0, 2, true}, {3 * s, 1, false}}, 17},
		"three calls, then two units":          {[]call{{0, 3, true}, {300 * ms, 1, true}, {600 * ms, 1, true}, {3 * s, 1, false}}, 17},
		"the last two of three calls":          {[]call{{0, 3, false}, {300 * ms, 1, true}, {600 * ms, 1, true}}, 15},
		"the first and the last of three":      {[]call{{0, 3, true}, {300 * ms, 1, false}, {600 * ms, 1, true}}, 17},
		"one of many calls at short intervals": {series(15, 8*ms), 18 - 14},
		"a call two seconds ago":               {append([]call{{0, 5, false}}, series(9, 260*ms)...), 18 - 5 - 8 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLeakyRig(t)
			var refunds []bucketEvent
			for _, of := range c.calls {
				if slot := r.take(of.at, of.units); of.refunded {
					refunds = append(refunds, bucketRefundEvent(r.bucket, int64(of.units), slot))
				}
			}
			if got := r.remaining(c.calls[len(c.calls)-1].at, refunds...); got != c.want {
				t.Errorf("remaining units after the refunds: got %d, want %d", got, c.want)
			}
		})
	}
}

// Units that the upstream gives back with its response are free at once. After that, a call can get an earlier
// slot than a call before it, and can be refunded too.
func TestLeakyBucket_RefundsACallWithAnEarlierSlot(t *testing.T) {
	r := newLeakyRig(t)
	r.take(0, 17)
	ahead := r.take(1900*ms, 3) // its slot is 100 ms later
	if got, want := r.remaining(1900*ms, bucketRefundEvent(r.bucket, 17, refundedNow), bucketRefundEvent(r.bucket, 3, ahead)), int64(18); got != want {
		t.Errorf("remaining units after the refund of all calls: got %d, want %d", got, want)
	}
	slot := r.take(1950*ms, 2)
	if got, want := r.remaining(1950*ms), int64(16); got != want || slot >= ahead {
		t.Errorf("remaining units: got %d, want %d; slot: got %d, want less than %d", got, want, slot, ahead)
	}
	if got, want := r.remaining(1950*ms, bucketRefundEvent(r.bucket, 2, slot)), int64(18); got != want {
		t.Errorf("remaining units after the refund: got %d, want %d", got, want)
	}
}

// After a loss of state the bucket begins as if it were used up. Refunds of earlier slots have no effect.
func TestLeakyBucket_IgnoresRefundsFromBeforeALoss(t *testing.T) {
	r := newLeakyRig(t)
	slot := r.take(0, 3)
	r.redis.FlushAll()
	if got, want := r.remaining(10*ms, bucketRefundEvent(r.bucket, 3, slot)), int64(0); got != want {
		t.Errorf("remaining units after the loss: got %d, want %d", got, want)
	}
	if got, want := r.remaining(12*time.Second), int64(11); got != want {
		t.Errorf("remaining units 12 s later, with a quiet period of 200 ms: got %d, want %d", got, want)
	}
}

// A response reports how many units are available. If that is clearly less than the bucket has, it applies:
// more than 2 units less, and more than 2 % of the size.
func TestLeakyBucket_LowerLevelApplies(t *testing.T) {
	for name, c := range map[string]struct {
		limit    int
		reported int64 // at the time of a call of 3 units, which made the bucket full except for these
		want     int64 // one second later
	}{
		"small bucket, as expected":    {20, 15, 16},
		"small bucket, 2 units less":   {20, 13, 16},
		"small bucket, 3 units less":   {20, 12, 13},
		"large bucket, 19 units less":  {1000, 976, 996},
		"large bucket, 20 units less":  {1000, 975, 976},
		"large bucket, no units":       {1000, 0, 1},
		"small bucket, more than size": {20, 19, 16},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLeakyRigOf(t, c.limit)
			slot := r.take(0, 3)
			if got := r.remaining(time.Second, levelEvent(r.bucket, c.reported, slot)); got != c.want {
				t.Errorf("remaining units after a report of %d: got %d, want %d", c.reported, got, c.want)
			}
		})
	}
}

// A reported level can include units that are refunded later, so such a refund has no effect.
func TestLeakyBucket_LevelIncludesLaterRefunds(t *testing.T) {
	r := newLeakyRig(t)
	slot := r.take(0, 3)
	level, refund := levelEvent(r.bucket, 5, slot), bucketRefundEvent(r.bucket, 3, slot)
	if got, want := r.remaining(0, level, refund), int64(5); got != want {
		t.Errorf("remaining units after a report of 5 and a refund: got %d, want %d", got, want)
	}
	next := r.take(time.Second, 3)
	if got, want := r.remaining(time.Second, bucketRefundEvent(r.bucket, 3, next)), int64(6); got != want {
		t.Errorf("remaining units after a later call and its refund: got %d, want %d", got, want)
	}
}

// A leaky bucket never overflows if slots are refunded in any order, before or after their times. The used
// slots alone are put into a bucket of the same size.
func TestRefund_NeverOverfillsALeakyBucket(t *testing.T) {
	const unit, size = 100 * ms, 38 // the policy below has 40 units, and the script keeps 2 of them
	p := Policy{Name: "bucket", Limit: 40, Restore: 10}
	eachSeed(t, 3, func(t *testing.T, seed uint64) {
		var empty time.Time // when the bucket will be empty
		slots := newBackRig(t, p).draw(seed, time.Minute)
		for _, slot := range slots {
			if empty.Before(slot) {
				empty = slot
			}
			empty = empty.Add(unit)
			if got, most := empty.Sub(slot), size*unit; got > most {
				t.Fatalf("the bucket at %v would need %v until it is empty: want at most %v", slot, got, most)
			}
		}
		if got, want := len(slots), 200; got < want {
			t.Errorf("used slots: got %d, want at least %d", got, want)
		}
	})
}
