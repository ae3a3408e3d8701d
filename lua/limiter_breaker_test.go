package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const refusedByBreaker = -5

// openEvent returns the event that reports an unhealthy upstream. `sent` is the time slot of the
// failed call, `first` is the first pause and `most` the longest pause, all in µs.
func openEvent(first, most, sent int64) string {
	return fmt.Sprintf("open %d %d %d", first, most, sent)
}

// closeEvent returns the event that reports a successful call. `sent` is the time slot of the call
// in µs.
func closeEvent(sent int64) string { return fmt.Sprintf("close %d", sent) }

// openBreaker is the open breaker in the state.
type openBreaker struct{ next, began, pause, most int64 }

// breaker returns the open breaker, or nil if it is closed.
func (b bucket) breaker() *openBreaker {
	b.t.Helper()
	for s := b.look()[7:]; len(s) >= 5; s = s[5:] {
		if s[0] == 4 {
			return &openBreaker{s[1], s[2], s[3], s[4]}
		}
	}
	return nil
}

// acquireEvery runs the script every quarter of a second, for `duration` µs. It returns the granted slots.
func acquireEvery(b bucket, c *clock, duration int64, nHigh, nLow int) (all []int64) {
	for end := c.us() + duration; c.us() < end; c.advance(second / 4) {
		all = append(all, b.acquire(nHigh, nLow).all()...)
	}
	return all
}

func TestBreaker_GrantsOneProbePerPause(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.zone, b.more = time.UTC, windowLog(second, 50, 40)+day(100_000, 0)
		b.awake()
		sent := b.acquire(1, 1).now
		reply := b.acquireAfter(0, 0, openEvent(5*second, 60*second, sent))
		if reply.refusalHigh != refusedByBreaker || reply.refusalLow != refusedByBreaker || reply.backHigh != 0 {
			t.Errorf("got reply to the report %+v", reply)
		}
		g := b.acquire(64, 64)
		if len(g.all()) > 0 || g.refusalHigh != refusedByBreaker || g.refusalLow != refusedByBreaker || g.backHigh < 1 || g.backHigh > second/2 {
			t.Errorf("before the first probe: %+v", g)
		}
		s := b.breaker()
		if s == nil || s.next != s.began+5*second || s.began < reply.now || s.began > g.now || s.most != 60*second {
			t.Fatalf("got state %+v", s)
		}
		// The pause of the breaker is over, so a probe is due.
		b.shiftBreaker(-6 * second)
		g = b.acquire(64, 64)
		if len(g.high) != 1 || len(g.low) != 0 || g.high[0] != g.now || g.refusalHigh != refusedByBreaker || g.refusalLow != refusedByBreaker || g.used != 3 {
			t.Errorf("the probe: %+v", g)
		}
		if s := b.breaker(); s == nil || s.next != g.now+10*second || s.pause != 10*second {
			t.Errorf("after the probe: %+v", s)
		}
		lifted := b.acquireAfter(0, 0, closeEvent(g.high[0]))
		if lifted.refusalHigh != 0 || b.breaker() != nil {
			t.Errorf("after a success: %+v", lifted)
		}
		if got := b.look(); got[4] < lifted.now || got[4] > got[0] || got[5] < 500 || got[5] >= 1000 {
			t.Errorf("after its end the rate is %d thousandths, from %d on", got[5], got[4])
		}
		if g := b.acquire(1, 1); len(g.all()) == 0 {
			t.Errorf("after its end: %+v", g)
		}
	})
}

// shiftBreaker adds `by` µs to the breaker's times. A negative value makes it look as if the
// breaker had opened earlier.
func (b bucket) shiftBreaker(by int64) {
	b.t.Helper()
	n := b.numbers(b.line(breakerLine))
	b.setLine(breakerLine, digits(n[0]+by, n[1]+by, n[2]+by, n[3], n[4]))
}

func TestBreaker_DoublesItsPauses(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		began := c.us()
		want := []int64{5, 15, 35, 75, 135, 195, 255}
		got := acquireEvery(b, c, 300*second, 30, 30)
		for i := range got {
			got[i] -= began
		}
		for i, s := range want {
			if i >= len(got) || got[i] != s*second {
				t.Fatalf("probes at %v us, want %v s", got, want)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d probes in 300 s, want %d", len(got), len(want))
		}
	})
}

func TestBreaker_ReplacesAnUnsentProbeSoon(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(8*second, 60*second, c.us()))
		began := c.us()
		probes := acquireEvery(b, c, 9*second, 1, 1)
		if len(probes) != 1 || probes[0] != began+8*second {
			t.Fatalf("probes at %v, began %d", probes, began)
		}
		b.acquireAfter(0, 0, fmt.Sprintf("refund %d", probes[0]))
		refunded := c.us()
		b.acquireAfter(0, 0, fmt.Sprintf("refund %d", probes[0])) // a repeated refund has no effect
		again := acquireEvery(b, c, 40*second, 1, 1)
		// The next probe is due one second after the refund. The pause after it is as long as the
		// pause after the refunded probe would have been.
		if len(again) != 2 || again[0] < refunded+second || again[0] > refunded+2*second || again[1] != again[0]+16*second {
			t.Errorf("refunded at %d; then probes at %v", refunded, again)
		}
	})
}

func TestBreaker_ProbesHighFirst(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(0, 0, c.us())) // the minimum pause of one second applies
		c.advance(second)
		if g := b.acquire(1, 1); len(g.high) != 1 || len(g.low) != 0 || g.backLow < 1 || g.refusalLow != refusedByBreaker || g.refusalHigh != refusedByBreaker {
			t.Errorf("both lanes waited: %+v", g)
		}
		c.advance(second)
		if g := b.acquire(0, 1); len(g.low) != 1 || g.refusalLow != refusedByBreaker || g.backLow != second/2 {
			t.Errorf("only LOW waited: %+v", g)
		}
	})
}

func TestBreaker_WaitersNeitherHangNorStampede(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(60*second, 40, 30) // a window of 40 calls in 60 s: one call per 1.5 s on average
		b.awake()
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		began := c.us()
		processes := make([]process, 8)
		for i := range processes {
			processes[i].low, processes[i].at = 1, c.us()
		}
		_, low, calls := play(b, c, 260*second, true, processes)
		if len(low) != 7 || low[0] != began+5*second {
			t.Errorf("%d probes in 260 s, the first after %d us; want 7, and 5 s", len(low), low[0]-began)
		}
		for i := range low[1:] {
			if pause := low[i+1] - low[i]; pause < min(60, int64(10)<<i)*second || pause > min(60, int64(10)<<i)*second+3*second {
				t.Errorf("pause %d is %d us", i+1, pause)
			}
		}
		if perSecond := float64(calls) / 260 / 8; perSecond > 2.2 {
			t.Errorf("a process called the script %.1f times a second", perSecond)
		}
	})
}

func TestBreaker_RepeatedReportsAddNoProbes(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		sent := c.us()
		c.advance(20_000)
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, sent)+" "+openEvent(5*second, 60*second, sent+10_000))
		began := c.us()
		want := func(what string, s openBreaker) {
			t.Helper()
			if got := b.breaker(); got == nil || *got != s {
				t.Errorf("%s: %+v, want %+v", what, got, s)
			}
		}
		same := openBreaker{began + 5*second, began, 5 * second, 60 * second}
		for range 10 { // repeat two events that must not change the breaker: a failure of an earlier call, and one with shorter pauses
			c.advance(100_000)
			b.acquireAfter(0, 0, openEvent(5*second, 60*second, sent+15_000))
			want("a call sent before it", same)
			b.acquireAfter(0, 0, openEvent(second, 2*second, c.us()))
			want("who acquireEvery for shorter pauses", same)
		}
		b.acquireAfter(0, 0, openEvent(8*second, 300*second, sent))
		want("who acquireEvery for longer ones", openBreaker{began + 8*second, began, 8 * second, 300 * second})
		c.set(time.UnixMicro(began + 8*second))
		g := b.acquire(1, 0)
		probed := openBreaker{c.us() + 16*second, began, 16 * second, 300 * second}
		want("the probe", probed)
		c.advance(second)
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, g.high[0]))
		want("the probe's own report", probed)
		b.acquireAfter(0, 0, openEvent(0, 0, 0))
		want("one that says nothing", probed)
	})
}

func TestBreaker_IgnoresReportsOfEarlierCalls(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(second, second, c.us()))
		c.advance(second)
		failed := b.acquire(1, 0).high[0]
		c.advance(second)
		healthy := b.acquire(1, 0).high[0]
		c.advance(100_000)
		b.acquireAfter(0, 0, closeEvent(healthy))
		ended := c.us()
		c.advance(30 * second) // 30 s later the call of the first probe times out
		b.acquireAfter(0, 0, openEvent(second, second, failed)+" "+openEvent(second, second, ended-1))
		if s := b.breaker(); s != nil {
			t.Errorf("an old failure opened the breaker %+v", s)
		}
		b.acquireAfter(0, 0, openEvent(second, second, ended))
		if b.breaker() == nil {
			t.Error("a new failure did not open the breaker")
		}
		b.acquireAfter(0, 0, closeEvent(healthy)) // the close event is sent again, as if the outcome of the first close event were unknown
		if b.breaker() == nil {
			t.Error("the event that closed the last breaker closed this one too")
		}
	})
}

func TestBreaker_IgnoresSuccessOfEarlierCalls(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		sent := c.us()
		c.advance(100_000)
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, sent))
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(sent)+" "+closeEvent(c.us()-second))
		if b.breaker() == nil {
			t.Error("a call sent before the opening closed the breaker")
		}
		b.acquireAfter(0, 0, closeEvent(c.us()-second+1))
		if b.breaker() != nil {
			t.Error("a call sent after the opening did not close the breaker")
		}
		b.backOff(c, 20*second, second)
		until := b.backoffEnd()
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(c.us()))
		if got := b.backoffEnd(); got != until {
			t.Errorf("a success moved the end of a backoff by %d us", got-until)
		}
		b.revision, b.stopped = 1, 1
		b.acquireAfter(0, 0, closeEvent(c.us()))
		c.advance(60 * second)
		if g := b.acquire(1, 1); len(g.all()) > 0 || g.refusalHigh != refusedByStop {
			t.Errorf("a success ended an emergency stop: %+v", g)
		}
	})
}

func TestBreaker_RampsUpFromHalfTheRate(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		saturate(b, c, 2*second)
		b.acquireAfter(0, 0, openEvent(5*second, 300*second, c.us()))
		probes := acquireEvery(b, c, 100*second, 5, 5)
		b.acquireAfter(0, 0, closeEvent(probes[len(probes)-1]))
		end := c.us()
		all := slices.Concat(saturate(b, c, 14*second))
		slices.Sort(all)
		if got := within(all, end, end+second/10); got < 15 || got > 2+450/10/2+1 {
			t.Errorf("%d slots in the first tenth of a second", got)
		}
		for n := range int64(13) {
			want := 450 * min(1, 0.5+0.05*(float64(n)+0.5))
			if got := within(all, end+n*second, end+(n+1)*second); float64(got) < 0.96*want || float64(got) > 1.03*want {
				t.Errorf("second %d after the breaker closed: %d slots, want about %.0f", n+1, got, want)
			}
		}
	})
}

func TestBreaker_EmergencyStopPreventsProbes(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(second, 4*second, c.us()))
		b.revision, b.stopped = 1, 1
		if got := acquireEvery(b, c, 20*second, 1, 1); len(got) > 0 {
			t.Errorf("%d probes while stopped", len(got))
		}
		b.revision, b.stopped = 2, 0
		if g := b.acquire(5, 5); len(g.high) != 1 || len(g.low) > 0 || g.refusalHigh != refusedByBreaker {
			t.Errorf("resumed: %+v", g)
		}
	})
}

func TestBreaker_ProbesNeedRoomInPolicies(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(30*second, 4, 2)
		b.onDay(10, 0)
		b.more = windowLog(30*second, 4, 2) + b.more
		b.awake()
		b.acquireAfter(0, 0, openEvent(second, second, c.us()))
		began := c.us()
		got := acquireEvery(b, c, 150*second, 3, 0)
		if len(got) != 10 || mostInWindow(got, 30*second-1) > 4 || got[3] != began+4*second || got[4] != got[0]+30*second {
			t.Errorf("probes at %v; want 10 of the day, 4 in 30 s", got)
		}
		if g := b.acquire(1, 1); g.backHigh < 500_000 || g.backLow < 500_000 || g.refusalHigh != refusedByBreaker {
			t.Errorf("when the day has no more: %+v", g)
		}
	})
}

func TestBreaker_HoldsInRandomReportOrders(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 81))
			b.awake()
			var in *openBreaker
			granted := 0
			last := int64(0)
			for range 300 {
				c.advance(rng.Int64N(2 * second))
				happened := ""
				switch rng.IntN(12) {
				case 0, 1:
					happened = openEvent(second+rng.Int64N(5*second), rng.Int64N(30*second), c.us()-rng.Int64N(3*second))
				case 2:
					happened = closeEvent(c.us() - rng.Int64N(20*second))
				case 3:
					happened = backoffEvent(rng.Int64N(5*second), second, c.us())
				}
				g := b.acquireAfter(rng.IntN(20), rng.IntN(20), happened)
				now := b.breaker()
				switch {
				case now == nil:
					granted, last = 0, 0
				case in == nil || now.began != in.began:
					granted, last = 0, now.began
					if len(g.all()) > 0 {
						t.Fatalf("seed %d: %v granted when the breaker opened", seed, g)
					}
				case len(g.all()) > 1 || (len(g.all()) == 1 && g.all()[0] < in.next):
					t.Fatalf("seed %d: %+v from %+v", seed, g, in)
				case len(g.all()) == 1:
					if g.all()[0]-last < second || now.next < g.all()[0]+min(now.most, 2*in.pause) {
						t.Fatalf("seed %d: probe %d at %+v, then %+v", seed, granted, g, now)
					}
					granted, last = granted+1, g.all()[0]
				case now.pause < in.pause, now.next < in.next && !strings.HasPrefix(happened, "backoff"): // only a backoff event may set an earlier time for the next probe
					t.Fatalf("seed %d: from %+v to %+v", seed, in, now)
				}
				in = now
			}
		})
	}
}
