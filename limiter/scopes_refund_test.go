package limiter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// scriptRig sends demands of one queue to the script.
type scriptRig struct {
	*testing.T
	redis   *miniredis.Miniredis
	run     acquireFunc
	limiter *Limiter
	line    *queue
	process string
	events  []event // events of the source for the next demand
	calls   int
}

func newScriptRig(t *testing.T, config Config) scriptRig {
	t.Helper()
	_, m := servicetest.MiniRedis(t)
	r := scriptRig{T: t, redis: m, run: script("s", slowClient(t, m.Addr())), process: "p"}
	var err error
	if r.limiter, err = newLimiter("s", config, r.run, withoutLogs(Deps{})); err != nil {
		t.Fatal(err)
	}
	r.line = r.limiter.alloc.queueFor(schemas.High, Call{Endpoint: "f/d", Key: "k"})
	return r
}

// send sends events at the given time of Redis' clock, and requests n slots.
func (r *scriptRig) send(at time.Time, n int, events ...bucketEvent) (demand, grant) {
	r.Helper()
	r.calls++
	d := demand{terms: r.limiter.alloc.active.terms, tickets: fmt.Sprint(r.calls, "-"), process: r.process, bucketEvents: events, events: r.events}
	r.events = nil
	if n > 0 {
		d.queues = []queueDemand{{r.line, n}}
	}
	r.redis.SetTime(at)
	g, err := r.run(r.Context(), d)
	if err != nil {
		r.Fatal(err)
	}
	return d, g
}

// firstBucket returns the first bucket of the rig's queue.
func (r *scriptRig) firstBucket() *bucket { return r.line.key.candidates[0].costs[0].bucket }

// ticketOf returns the ticket of a granted call that costs one unit.
func ticketOf(d demand, s queueSlot) string { return fmt.Sprintf("%s%d:1", d.tickets, s.number) }

// backRig requests slots of one policy from the script, and refunds some of them.
type backRig struct {
	scriptRig
	reach time.Duration                // the limit must hold in each period of this length: window + a permit's lifetime + jitter
	back  func(slot int64) bucketEvent // function that returns the event which refunds one unit of a slot
}

func newBackRig(t *testing.T, p Policy) *backRig {
	t.Helper()
	config := scopedConfig(p)
	r := &backRig{scriptRig: newScriptRig(t, config)}
	r.reach = time.Duration(p.Window) + permitLife + config.Jitter
	for _, c := range r.line.key.candidates[0].costs {
		switch r.limiter.alloc.active.quota.scoped[c.policyIndex].kind() {
		case unitLogKind:
			r.back = func(slot int64) bucketEvent { return logRefundEvent(c.bucket, slot, 1) }
		case leakyBucketKind:
			r.back = func(slot int64) bucketEvent { return bucketRefundEvent(c.bucket, 1, slot) }
		case minIntervalKind, concurrencyKind, reportedKind, breakerKind:
		}
	}
	return r
}

// call makes one call to Redis that refunds the slots in `back` and requests n slots. A slot is its
// time in µs.
func (r *backRig) call(at time.Time, n int, back ...int64) (slots []int64) {
	r.Helper()
	var refunds []bucketEvent
	for _, slot := range back {
		refunds = append(refunds, r.back(slot))
	}
	_, g := r.send(at, n, refunds...)
	for _, s := range g.queues[0].slots {
		slots = append(slots, g.now+s.wait)
	}
	return slots
}

// A log keeps only as many slots as its limit, so a granted slot in the future removes an older
// slot. The older slot can be so recent that it still counts towards the limit. If the future slot
// is refunded, the older slot must count again, even if other slots were refunded in between.
func TestRefund_BeforeItsTimeRestoresSlack(t *testing.T) {
	r := newBackRig(t, logOf(2))
	at := time.UnixMilli(1_700_000_000_000)
	r.call(at, 1)
	at = at.Add(time.Minute)
	first := r.call(at, 2)
	at = at.Add(r.reach - 50*ms)
	ahead := r.call(at, 1)
	if len(first) != 2 || len(ahead) != 1 || ahead[0] <= at.UnixMicro() {
		t.Fatalf("slots %v and then %v, at %d", first, ahead, at.UnixMicro())
	}
	if again := r.call(at.Add(ms), 2, first[0], ahead[0]); len(again) != 2 || again[1] < ahead[0] {
		t.Errorf("slots %v where one of %v is charged and the reach is %v", again, first, r.reach)
	}
}

// The limit of a policy holds in every window if slots are refunded in any order, before or after
// their times.
func TestRefund_NeverExceedsThePolicy(t *testing.T) {
	paced := Policy{Name: "paced", Limit: 20, Window: Window(time.Second), Unit: "units"}
	bursts := Policy{Name: "bursts", Limit: 20, Window: Window(time.Second), Unit: "units", Costs: map[string]int{"DELETE": 4}}
	for _, p := range []Policy{logOf(5), paced, bursts} {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			eachSeed(t, 1, func(t *testing.T, seed uint64) {
				r := newBackRig(t, p)
				slots := r.draw(seed, r.reach)
				most, n := mostWithin(slots, r.reach-time.Microsecond), len(slots)
				if most > p.Limit || n < p.Limit {
					t.Errorf("got %d slots, %d within the policy's reach, want at least %d, and at most %d within", n, most, p.Limit, p.Limit)
				}
			})
		})
	}
}

// A log whose state was lost begins used up. A refund of a call from before the loss must not make room in
// it, because the new log does not have that call. The last slot that the lost state could grant is at the
// horizon.
func TestRefund_OfALostLogMakesNoRoom(t *testing.T) {
	r := newBackRig(t, logOf(5))
	born := time.UnixMilli(1_700_000_000_000)
	r.send(born, 1)
	var refunds []bucketEvent
	for range 5 {
		refunds = append(refunds, r.back(born.Add(horizon).UnixMicro()))
	}
	_, g := r.send(born.Add(ms), 0, refunds...)
	for _, state := range g.states {
		if state.remaining != 0 {
			t.Errorf("units left after refunds of slots from before the loss: got %d, want 0", state.remaining)
		}
	}
	if len(g.states) != 1 {
		t.Errorf("buckets in the reply: got %d, want 1", len(g.states))
	}
}

func logOf(units int) Policy {
	return Policy{Name: "log", Limit: units, Window: Window(time.Second), Scope: "all"}
}

// draw requests and refunds slots at random. A slot is refunded at the latest when its age is maxAge. It
// returns the used slots.
func (r *backRig) draw(seed uint64, maxAge time.Duration) (used []time.Time) {
	chance := rand.New(rand.NewPCG(seed, 11))
	at := time.UnixMilli(1_700_000_000_000)
	var slots []int64
	for step := range 500 {
		at = at.Add(time.Duration(chance.IntN(1+chance.IntN(200))) * ms)
		if step%100 == 1 {
			at = at.Add(time.Minute) // now all units are free
		}
		var back []int64
		for range max(0, chance.IntN(12)-8) { // refund some of the last slots, also slots in the future
			if i := len(slots) - 1 - chance.IntN(5); i >= 0 && slots[i] > at.Add(-maxAge).UnixMicro() {
				back = append(back, slots[i])
				slots = slices.Delete(slots, i, i+1)
			}
		}
		slots = append(slots, r.call(at, 1+chance.IntN(5), back...)...)
		slices.Sort(slots)
	}
	for _, s := range slots {
		used = append(used, time.UnixMicro(s))
	}
	return used
}

// Units that are refunded to a leaky bucket can be used by other calls, but only up to the burst of the
// bucket.
func TestRefund_MakesRoomInABucket(t *testing.T) {
	policy := Policy{Name: "bursts", Limit: 500, Window: Window(10 * time.Second), Unit: "units"}
	for name, back := range map[string]int{"nothing": 0, "a fifth": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newBackRig(t, policy)
			at := time.UnixMilli(1_700_000_000_000)
			r.call(at, 1)
			at = at.Add(time.Minute)
			var out []int64
			used, n := 0, 0
			const steps = 300
			for range steps { // each step requests more slots than are free, so the bucket stays saturated
				at = at.Add(50 * ms)
				var ended []int64
				for len(out) > 0 && out[0] < at.Add(-300*ms).UnixMicro() {
					if n++; back > 0 && n%back == 0 {
						ended, used = append(ended, out[0]), used-1
					}
					out = out[1:]
				}
				slots := r.call(at, 20, ended...)
				out, used = append(out, slots...), used+len(slots)
			}
			rate := float64(used) / (steps * 0.05)
			if rate < 44 || rate > 50 {
				t.Errorf("a saturated bucket of 50 a second gave %.1f, %s refunded", rate, name)
			}
		})
	}
}
