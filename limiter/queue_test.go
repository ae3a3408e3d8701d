package limiter

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

// While callers of Acquire wait, callers of AcquireRetry (retries) get every fourth permit. So a
// retry is not always the next probe, retries are not served in a block after the breaker closes,
// and retries are never starved.
func TestQueue_GivesRetriesEveryFourthPermit(t *testing.T) {
	for _, why := range []refusal{refusedByBreaker, notRefused} {
		var slots atomic.Int64
		r := &redisDouble{}
		r.answer = func(_ int, d demand) (grant, error) {
			g := grant{now: r.now(), refusalLow: why, backLow: 100 * ms}
			if d.low > 0 && slots.Load() > 0 {
				slots.Add(-1)
				g.low = []time.Duration{0}
			}
			return g, nil
		}
		simulated(t, r, func(t *testing.T, l *Limiter) {
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan string, 20)
			wait := func(name string, acquire func(context.Context, schemas.Lane, Call) (*Permit, error)) {
				go func() {
					if p, err := acquire(ctx, schemas.Low, Call{}); err == nil {
						p.Spend()
						got <- name
					}
				}()
				synctest.Wait()
			}
			next := func(want string) {
				t.Helper()
				slots.Store(1)
				elapse(time.Second)
				select {
				case who := <-got:
					if who != want {
						t.Errorf("%s got the permit of %s", who, want)
					}
				default:
					t.Errorf("nobody got the permit of %s", want)
				}
			}
			wait("the first that failed", l.AcquireRetry)
			wait("the second that failed", l.AcquireRetry)
			wait("the third that failed", l.AcquireRetry)
			elapse(time.Second)
			wait("b", l.Acquire)
			wait("a, whose permit lapsed", l.Reacquire)
			for _, name := range []string{"c", "d", "e"} {
				wait(name, l.Acquire)
			}
			for _, want := range []string{"a, whose permit lapsed", "b", "c", "the first that failed", "d", "e", "the second that failed"} {
				next(want)
			}
			for _, name := range []string{"f", "g", "h", "i"} {
				wait(name, l.Acquire)
			}
			for _, want := range []string{"f", "g", "h", "the third that failed", "i"} {
				next(want)
			}
			cancel()
			synctest.Wait()
		})
	}
}

// While the breaker is open, the calls that are no retries get about three of four probes, even if
// eleven of twelve queues contain only retries.
func TestQueue_RetriesProbeSeldom(t *testing.T) {
	l := &Limiter{}
	l.alloc.breaker.open.Store(true)
	var all []queueDemand
	for i := range 12 {
		q := &queue{}
		q.push(&Permit{retry: i != 7})
		all = append(all, queueDemand{q: q, n: 1})
	}
	fresh, others := 0, map[*queue]bool{}
	for range 1000 {
		picked := l.alloc.selectQueues(all)
		if len(picked) != 1 {
			t.Fatalf("%d queues probe at once", len(picked))
		}
		if q := picked[0].q; q == all[7].q {
			fresh++
		} else {
			others[q] = true
		}
	}
	if fresh < 650 || len(others) != 11 {
		t.Errorf("%d of 1000 probes for the queue without retries, and %d of 11 others", fresh, len(others))
	}
}

// Under any sequence of operations a queue serves its waiters in the order of two plain lists: one
// of the retries, and one of the other calls.
func TestQueue_KeepsItsOrder(t *testing.T) {
	for seed := range uint64(200) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var q queue
		lists := map[bool][]*Permit{} // the expected waiters: lists[true] are the retries, lists[false] the other calls
		passed := 0
		for step := range 300 {
			p := &Permit{retry: dice.IntN(3) == 0}
			switch dice.IntN(5) {
			case 0, 1:
				q.push(p)
				lists[p.retry] = append(lists[p.retry], p)
			case 2:
				q.pushFront(p)
				lists[p.retry] = slices.Insert(lists[p.retry], 0, p)
			case 3:
				all := slices.Concat(lists[false], lists[true])
				if len(all) == 0 {
					continue
				}
				out := all[dice.IntN(len(all))]
				q.remove(out)
				lists[out.retry] = slices.DeleteFunc(lists[out.retry], func(x *Permit) bool { return x == out })
			case 4:
				if q.length == 0 {
					if q.next() != nil {
						t.Fatalf("seed %d, step %d: next of an empty queue is not nil", seed, step)
					}
					continue
				}
				retry := len(lists[false]) == 0 || (len(lists[true]) > 0 && passed == 3)
				want := lists[retry][0]
				if passed++; retry || len(lists[true]) == 0 {
					passed = 0
				}
				lists[retry] = lists[retry][1:]
				if next, got := q.next(), q.serve(); got != want || next != want {
					t.Fatalf("seed %d, step %d: got a retry: %v, want %v", seed, step, got.retry, retry)
				}
			}
			for retry, l := range map[bool]waitList{false: q.fresh, true: q.retries} {
				var forth, back []*Permit
				for p := l.first; p != nil; p = p.after {
					forth = append(forth, p)
				}
				for p := l.last; p != nil; p = p.before {
					back = append(back, p)
				}
				slices.Reverse(back)
				if want := lists[retry]; !slices.Equal(forth, want) || !slices.Equal(back, want) {
					t.Fatalf("seed %d, step %d: %d forward, %d backward, want %d", seed, step, len(forth), len(back), len(want))
				}
			}
			if want := len(lists[false]) + len(lists[true]); q.length != want {
				t.Fatalf("seed %d, step %d: length %d, want %d", seed, step, q.length, want)
			}
		}
	}
}
