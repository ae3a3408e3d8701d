package limiter

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

// One who has failed is not the next to probe, whenever the others come; when the stop is
// over each is served in turn, so that a stream of others keeps nobody out.
func TestWhoHasFailedProbesLast(t *testing.T) {
	stopped, probes, served := true, 0, 0
	r := &redisDouble{}
	r.answer = func(_ int, d demand) (grant, error) {
		g := grant{now: r.now(), backLow: 400 * ms}
		switch {
		case stopped:
			g.whyLow = whyProbing
			if d.low > 0 && probes > 0 {
				probes--
				g.low = []time.Duration{0}
			}
		case d.low > 0 && served > 0:
			served--
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
			elapse(time.Second)
			select {
			case who := <-got:
				if who != want {
					t.Errorf("%s had the permit of %s", who, want)
				}
			default:
				t.Errorf("nobody had the permit of %s", want)
			}
		}
		wait("the first that failed", l.AcquireBehind)
		wait("another that failed", l.AcquireBehind)
		elapse(time.Second)
		wait("one who comes later", l.Acquire)
		wait("one whose permit lapsed", l.AcquireAgain)
		wait("the last who comes", l.Acquire)
		for _, want := range []string{"one whose permit lapsed", "one who comes later", "the last who comes", "the first that failed"} {
			probes = 1
			next(want)
		}
		stopped = false
		elapse(time.Second) // somebody has learned of it
		wait("who comes when it is over", l.Acquire)
		for _, want := range []string{"another that failed", "who comes when it is over"} {
			served = 1
			next(want)
		}
		cancel()
		synctest.Wait()
	})
}

// A queue is what a plain list of names would be, whatever is done to it.
func TestAQueueIsInOrder(t *testing.T) {
	for seed := range uint64(200) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var q queue
		var ahead, behind []*Permit // the model: behind are those who stand behind whoever comes
		for step := range 200 {
			p := &Permit{}
			switch dice.IntN(6) {
			case 0, 1:
				q.push(p)
				ahead = append(ahead, p)
			case 2:
				q.pushBehind(p)
				behind = append(behind, p)
			case 3:
				q.pushFront(p)
				ahead = slices.Insert(ahead, 0, p)
			case 4:
				all := slices.Concat(ahead, behind)
				if len(all) == 0 {
					continue
				}
				out := all[dice.IntN(len(all))]
				q.remove(out)
				same := func(x *Permit) bool { return x == out }
				ahead, behind = slices.DeleteFunc(ahead, same), slices.DeleteFunc(behind, same)
			case 5:
				if dice.IntN(4) == 0 {
					q.level()
					ahead, behind = slices.Concat(ahead, behind), nil
				}
			}
			want := slices.Concat(ahead, behind)
			var forth, back []*Permit
			for p := q.first; p != nil; p = p.after {
				forth = append(forth, p)
			}
			for p := q.last; p != nil; p = p.before {
				back = append(back, p)
			}
			slices.Reverse(back)
			if !slices.Equal(forth, want) || !slices.Equal(back, want) || q.length != len(want) {
				t.Fatalf("seed %d, step %d: %d forth, %d back, length %d, of %d", seed, step, len(forth), len(back), q.length, len(want))
			}
		}
	}
}
