package lua_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// resumeEvent returns the event that reports a successful probe: the upstream has answered the
// probe with the time slot `slot` (µs), and has not refused it.
func resumeEvent(slot int64) string { return fmt.Sprintf("resume %d", slot) }

// probe sets the clock to the end of the backoff and returns the slot of the probe.
func (b bucket) probe(c *clock) int64 {
	b.t.Helper()
	c.set(time.UnixMicro(b.backoffEnd()))
	g := b.acquire(5, 5)
	if len(g.all()) != 1 || g.refusalHigh != refusedByBackoff || g.refusalLow != refusedByBackoff {
		b.t.Fatalf("at the end of the backoff: %+v, want one slot and the reason %d", g, refusedByBackoff)
	}
	return g.all()[0]
}

// endBackoff sets the clock to the end of the backoff. At that time the probe is granted, and answered
// without a refusal. endBackoff returns the time of the answer.
func (b bucket) endBackoff(c *clock) int64 {
	b.t.Helper()
	b.acquireAfter(0, 0, resumeEvent(b.probe(c)))
	return c.us()
}

// askAll runs three processes for `duration` µs. Every quarter of a second each process calls the
// script in turn and requests slots of both lanes. askAll returns the granted slots.
func askAll(b bucket, c *clock, duration int64) (all []int64) {
	for end := c.us() + duration; c.us() < end; c.advance(second / 4) {
		for range 3 {
			all = append(all, b.acquire(20, 20).all()...)
		}
	}
	return all
}

func TestBackoff_GrantsOneProbeToAllCallers(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.more = windowLog(second, 50, 40)
		b.awake()
		b.acquireAfter(0, 0, backoffEvent(1, 60*second, b.acquire(1, 1).now))
		g := b.acquire(20, 20)
		if len(g.high) != 1 || len(g.low) != 0 {
			t.Fatalf("after the pause of 1 us: %+v, want one slot of HIGH", g)
		}
		if g.refusalHigh != refusedByBackoff || g.refusalLow != refusedByBackoff {
			t.Errorf("got the reasons %d and %d, want %d", g.refusalHigh, g.refusalLow, refusedByBackoff)
		}
		if g.backLow != second/2 {
			t.Errorf("LOW calls again in %d us, want half a second", g.backLow)
		}
		if other := b.acquire(20, 20); len(other.all()) > 0 {
			t.Errorf("another process got %+v while the probe was in flight", other)
		}
		b.acquireAfter(0, 0, resumeEvent(g.high[0]))
		if after := b.acquire(0, 1); len(after.low) != 1 || after.refusalLow != 0 {
			t.Errorf("after the probe: %+v, want one slot of LOW", after)
		}
	})
}

func TestBackoff_FollowsALostProbeByAnother(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, unknown, second)
		began := c.us()
		got := askAll(b, c, 130*second)
		for i := range got {
			got[i] = (got[i] - began) / second
		}
		if want := []int64{1, 3, 7, 15, 31, 63, 123}; !slices.Equal(got, want) {
			t.Errorf("probes after %v s, want %v", got, want)
		}
	})
}

func TestBackoff_RefusedProbesLengthenAShortRetryAfter(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]int64{"no Retry-After": unknown, "Retry-After of 1 s": second, "Retry-After of 100 ms": second / 10} {
		simulated(t, func(b bucket, c *clock) {
			b.awake()
			refused := 0
			for end := c.us() + 30*second; c.us() < end; refused++ {
				b.backOff(c, pause, second)
				b.probe(c)
				c.advance(50_000) // 50 ms later the upstream answers the probe
			}
			if refused > 8 {
				t.Errorf("%s: %d probes in 30 s, want at most 8", name, refused)
			}
		})
	}
}

func TestBackoff_ShortRetryAfterGrowsToTenSeconds(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, second, second)
		var got []int64
		for range 6 {
			b.probe(c)
			b.backOff(c, second, second)
			got = append(got, (b.backoffEnd()-c.us())/second)
		}
		if want := []int64{2, 4, 8, 10, 10, 10}; !slices.Equal(got, want) {
			t.Errorf("pauses after refused probes that name 1 s: got %v s, want %v", got, want)
		}
	})
}

func TestBackoff_ObeysARetryAfterAboveItsOwnPause(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, 60*second, second)
		b.probe(c)
		b.backOff(c, 5*second, second)
		if got := b.backoffEnd() - c.us(); got != 5*second {
			t.Errorf("the refused probe named 5 s after a pause of 60 s: a backoff of %d us", got)
		}
	})
}

func TestBackoff_ReplacesAnUnsentProbe(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, 4*second, 4*second)
		slot := b.probe(c)
		c.advance(40_000)
		g := b.acquireAfter(1, 1, fmt.Sprintf("refund %d", slot))
		if len(g.high) != 1 || g.high[0] != c.us() {
			t.Fatalf("after the refund: %+v, want another probe", g)
		}
		again := b.acquireAfter(1, 1, fmt.Sprintf("refund %d", slot))
		if len(again.all()) > 0 {
			t.Errorf("after a second refund of the same probe: %+v", again)
		}
		if got := b.backoffEnd() - g.high[0]; got != 8*second {
			t.Errorf("the next probe comes %d us after the sent one, want 8 s", got)
		}
	})
}

func TestBackoff_OnlyAProbeAfterTheLastRefusalEndsIt(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		before := c.us()
		c.advance(second)
		b.backOff(c, second, second)
		late := b.probe(c)
		second := b.probe(c) // the first probe is not answered in time
		b.acquireAfter(0, 0, resumeEvent(before))
		if g := b.acquire(5, 5); len(g.all()) > 0 {
			t.Errorf("the answer to a call before the backoff ended it: %+v", g)
		}
		c.advance(20_000)
		b.backOff(c, unknown, 1)
		b.acquireAfter(0, 0, resumeEvent(late)+" "+resumeEvent(second))
		if g := b.acquire(5, 5); len(g.all()) > 0 {
			t.Errorf("the answer to an earlier probe ended a later backoff: %+v", g)
		}
		first := b.probe(c)
		b.probe(c)
		b.acquireAfter(0, 0, resumeEvent(first))
		if g := b.acquire(5, 5); len(g.all()) < 2 {
			t.Errorf("the late answer to the first of two probes did not end the backoff: %+v", g)
		}
	})
}

func TestBackoff_LongerPauseOutlivesAnAnsweredProbe(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		sent := c.us()
		b.backOff(c, second, second)
		slot := b.probe(c)
		b.acquireAfter(0, 0, backoffEvent(20*second, second, sent)) // the late refusal of a call that was sent before the backoff, with a Retry-After of 20 s
		until := c.us() + 20*second
		b.acquireAfter(0, 0, resumeEvent(slot))
		if got := b.backoffEnd(); got != until {
			t.Errorf("the backoff ends %d us from the time that the upstream named", got-until)
		}
		b.probe(c)
	})
}

func TestBackoff_ForgetsAProbeInFlightWithTheState(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		for range 5 {
			b.backOff(c, unknown, second)
			b.probe(c)
		}
		c.advance(-3600 * second) // the new server's clock is an hour behind
		b.failOver()
		b.acquire(1, 1)
		c.advance(quiet)
		g := b.acquire(5, 5)
		if len(g.all()) != 1 || g.refusalLow != refusedByBackoff {
			t.Errorf("after the quiet period: %+v, want one probe", g)
		}
	})
}

func TestBackoff_DisablesTheFastPathUntilItsProbe(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, second, second)
		for range 50 {
			c.advance(second)
			b.acquire(0, 0)
			if b.calm(c.us()) {
				t.Fatal("the fast path would decide this call")
			}
		}
		b.acquireAfter(0, 0, resumeEvent(b.acquire(1, 0).high[0]))
		c.advance(ramp)
		b.acquire(1, 1)
		if !b.calm(c.us()) {
			t.Error("ten seconds after the probe the full path decides all calls")
		}
	})
}

func TestBreaker_BackoffDelaysTheNextProbe(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		began := c.us()
		b.backOff(c, 2*second, second) // this backoff of 2 s ends before the next probe, which is due in 5 s
		if s := b.breaker(); s.next != began+5*second {
			t.Errorf("a short backoff: the next probe after %d us", s.next-began)
		}
		b.backOff(c, 20*second, second)
		if s := b.breaker(); s.next != began+20*second || b.backoffEnd() != began+20*second {
			t.Errorf("a long backoff: the next probe after %d us", s.next-began)
		}
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(c.us()))
		if b.breaker() != nil || b.backoffEnd() != began+20*second {
			t.Errorf("closed, the backoff lasts until %d us", b.backoffEnd()-began)
		}
		all := slices.Concat(saturate(b, c, 21*second))
		if slices.Sort(all); all[0] < began+20*second {
			t.Errorf("a slot after %d us", all[0]-began)
		}
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		began = c.us()
		b.backOff(c, 7*second, second)
		if probes := acquireEvery(b, c, 25*second, 5, 5); len(probes) != 2 || probes[0] != began+7*second || probes[1] != began+17*second {
			t.Errorf("probes at %v, the breaker opened at %d", probes, began)
		}
	})
}

func TestBreaker_LaterBackoffStartsFromItsBase(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		for range 4 {
			b.backOff(c, unknown, second)
			b.endBackoff(c)
		}
		c.advance(60 * second) // no failure for a minute after the pause, so the next backoff starts from its base
		b.acquireAfter(0, 0, openEvent(second, second, c.us()))
		c.advance(second)
		b.acquireAfter(0, 0, closeEvent(b.acquire(1, 0).high[0]))
		c.advance(second)
		b.backOff(c, unknown, second)
		if got := b.backoffEnd() - c.us(); got != second {
			t.Errorf("a backoff of %d us, want 1 s", got)
		}
	})
}

// While a breaker is open, a rejected caller calls again after a quarter of the time since the last probe
// or refusal. A probe that was not sent does not count.
func TestBackoff_UnsentProbeLeavesTheLastRefusal(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, second, second)
		slot := b.probe(c)
		c.advance(1000)
		b.acquireAfter(0, 0, openEvent(20*second, 60*second, c.us()))
		c.advance(5 * second)
		b.backOff(c, second, second)
		refusedAt := c.us()
		b.acquireAfter(0, 0, unspent(slot))
		c.set(time.UnixMicro(b.backoffEnd() + 2*second))
		if got, want := b.acquire(1, 0).backHigh, (c.us()-refusedAt)/4; got != want {
			t.Errorf("next call of HIGH: got %d us, want %d", got, want)
		}
	})
}

// Several processes report the first successes of their calls. Only the first report closes the breaker, so
// later reports must not begin the rise of the rate again.
func TestBreaker_LaterSuccessesKeepTheRamp(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquireAfter(0, 0, openEvent(second, second, c.us()))
		c.advance(second)
		for _, want := range []int64{500, 750, 1000} {
			b.acquireAfter(0, 0, closeEvent(c.us()))
			if got := b.look()[5]; got != want {
				t.Errorf("rate after a success: got %d thousandths, want %d", got, want)
			}
			c.advance(ramp / 2)
		}
	})
}
