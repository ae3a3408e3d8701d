package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const (
	unknown = 0           // value of Retry-After if the refusal has none
	ramp    = 10 * second // time in which the rate rises from half to full
)

// backoffEvent returns the event that reports a refused call. d is its Retry-After, 0 if it had
// none. base is the first pause without Retry-After. `sent` is the time slot of the call. All are
// in µs.
func backoffEvent(d, base, sent int64) string { return fmt.Sprintf("backoff %d %d %d", d, base, sent) }

// backOff reports to the limiter that the upstream has refused a call that was sent just now.
func (b bucket) backOff(c *clock, d, base int64) {
	b.t.Helper()
	b.acquireAfter(0, 0, backoffEvent(d, base, c.us()))
}

// backoffEnd returns the end of the backoff in the state. While a probe is in flight, it is the time
// of the next probe.
func (b bucket) backoffEnd() int64 {
	b.t.Helper()
	return b.look()[4]
}

func TestBackoff_StopsFurtherSlots(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.more = windowLog(second, 50, 50)
		b.awake()
		sent := b.acquire(1, 1).now
		b.acquireAfter(0, 0, backoffEvent(60*second, second, sent))
		g := b.acquire(5, 5)
		if len(g.all()) > 0 || g.refusalHigh != refusedByBackoff && g.refusalHigh != 1 || g.backHigh != 10*second {
			t.Errorf("during the backoff: %+v", g)
		}
		for _, shorter := range []int64{second, unknown} { // a later backoff with a shorter pause does not shorten the pause of 60 s
			b.acquireAfter(0, 0, backoffEvent(shorter, second, sent))
			if got := b.backoffEnd(); got < sent+60*second || got > g.now+60*second {
				t.Errorf("got a backoff of %d s, want 60", (got-sent)/second)
			}
		}
	})
}

func TestBackoff_LastsAsLongAsReported(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.backOff(c, 2*second, second)
		if g := b.acquire(5, 5); len(g.all()) > 0 || g.backHigh < 2*second-horizon || g.backLow < 2*second-horizon ||
			g.refusalHigh != refusedByBackoff || g.refusalLow != refusedByBackoff {
			t.Errorf("during the backoff: %+v", g)
		}
		b.backOff(c, second, second)
		c.advance(2*second - horizon)
		g := b.acquire(1, 1)
		if len(g.high) != 1 || g.high[0] < g.now+horizon {
			t.Errorf("at its end: %+v", g)
		}
	})
}

func TestBackoff_DoublesUpToAMinute(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		for round := range 2 {
			for _, want := range []int64{1, 2, 4, 8, 16, 32, 60, 60} {
				b.backOff(c, unknown, second)
				if got := b.backoffEnd() - c.us(); got != want*second {
					t.Errorf("round %d: a backoff of %d us, want %d s", round, got, want)
				}
				b.probe(c) // the probe is refused, so the pause doubles
				c.advance(second)
			}
			c.advance(ramp + 2*60*second) // after a minute without a refusal, the next pause is the first pause (base) again
		}
		b.backOff(c, unknown, 30*second) // if the configured first pause (base) is raised to 30 s, the next backoff has that length
		if got := b.backoffEnd() - c.us(); got != 30*second {
			t.Errorf("a backoff of %d us, its base is 30 s", got)
		}
	})
}

func TestBackoff_IgnoresRefusalsOfEarlierCalls(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		sent := c.us()
		c.advance(20_000)
		b.acquireAfter(0, 0, backoffEvent(unknown, second, sent)+" "+backoffEvent(unknown, second, sent-5000))
		until := c.us() + second
		for range 10 { // late refusals of calls that were sent before the backoff do not extend it
			c.advance(30_000)
			b.acquireAfter(0, 0, backoffEvent(unknown, second, sent+15_000))
			if got := b.backoffEnd(); got != until {
				t.Fatalf("an answer to what was sent before moved the backoff's end by %d us", got-until)
			}
		}
		b.probe(c)
		next := b.backoffEnd()
		b.acquireAfter(0, 0, backoffEvent(unknown, second, sent+15_000)) // a late refusal of one more call that was sent before the backoff
		if got := b.backoffEnd(); got != next {
			t.Errorf("a late answer moved the next probe by %d us", got-next)
		}
		b.backOff(c, unknown, second)
		if got := b.backoffEnd() - c.us(); got != 2*second {
			t.Errorf("the refusal of a call after the backoff caused a backoff of %d us, want 2 s", got)
		}
		c.advance(100_000)
		// A longer Retry-After is obeyed, even if the refused call was sent before the backoff.
		b.acquireAfter(0, 0, backoffEvent(5*second, second, c.us()-150_000))
		if got := b.backoffEnd() - c.us(); got != 5*second {
			t.Errorf("an answer that names 5 s caused a backoff of %d us", got)
		}
	})
}

func TestBackoff_RampsUpFromHalfTheRate(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		saturate(b, c, 2*second)
		b.backOff(c, 3*second, second)
		end := b.endBackoff(c)
		all := slices.Concat(saturate(b, c, 17*second))
		slices.Sort(all)
		if all[0] < end {
			t.Errorf("a slot %d us before the end of the backoff", end-all[0])
		}
		if got := within(all, end, end+second/10); got > 2+450/10/2+1 {
			t.Errorf("%d slots in the first tenth of a second: a burst", got)
		}
		for n := range int64(13) {
			want := 450 * min(1, 0.5+0.05*(float64(n)+0.5))
			got := within(all, end+n*second, end+(n+1)*second)
			if float64(got) < 0.96*want || float64(got) > 1.03*want {
				t.Errorf("second %d after the backoff: %d slots, want about %.0f", n+1, got, want)
			}
		}
	})
}

func TestBackoff_RampsUpAWindowLog(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const reach = second / 2
		b.lanes, b.more = nil, windowLog(reach, 40, 20)
		b.awake()
		b.backOff(c, second, second)
		end := b.endBackoff(c)
		high, _, _ := play(b, c, 14*second, true, []process{{high: 100, at: c.us()}})
		if high[0] < end {
			t.Errorf("a slot %d us before the end of the backoff", end-high[0])
		}
		if got := mostInWindow(high[:slices.IndexFunc(high, func(s int64) bool { return s > end+second })], reach-1); got < 20 || got > 22 {
			t.Errorf("%d slots in a reach of the first second, want 20 to 22 of 40", got)
		}
		for n := range int64(13) {
			want := 80 * min(1, 0.5+0.05*float64(n))
			if got := within(high, end+n*second, end+(n+1)*second); float64(got) < 0.85*want-2 || float64(got) > want+8 {
				t.Errorf("second %d after the backoff: %d slots, want about %.0f", n+1, got, want)
			}
		}
	})
}

func TestBackoff_SurvivesAFailoverWithoutABurst(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquire(50, 50)
		b.backOff(c, 10*second, second)
		end := b.backoffEnd()
		c.advance(second)
		b.acquire(1, 1) // this is the last write that the replica receives
		b.failOver()
		c.advance(second)
		if g := b.acquire(50, 50); len(g.all()) > 0 {
			t.Fatalf("after the failover: %+v", g)
		}
		if got := b.backoffEnd(); got < end || got > end+second {
			t.Errorf("the backoff ends %d us from where it ended before the failover", got-end)
		}
		end = b.endBackoff(c)
		all := slices.Concat(saturate(b, c, 14*second))
		slices.Sort(all)
		if all[0] < end {
			t.Errorf("a slot %d us before the end of the backoff", end-all[0])
		}
		if got := within(all, end, end+second/10); got > 2+450/10/2+1 {
			t.Errorf("%d slots in the first tenth of a second: a burst", got)
		}
	})
}

func TestBackoff_NewLimitAllowsNoBurstAfterwards(t *testing.T) {
	t.Parallel()
	for name, lanes := range map[string][]int64{
		"faster":          {5_000, 20, 1_429, 30, 0, 0},
		"slower":          {20_000, 10, 5_716, 15, 0, 0},
		"with a new lane": {10_000, 10, 3_334, 12, 20_000, 10},
	} {
		simulated(t, func(b bucket, c *clock) {
			b.awake()
			b.backOff(c, 5*second, second)
			b.revision, b.lanes = 1, lanes
			end := b.endBackoff(c)
			all := slices.Concat(saturate(b, c, second))
			slices.Sort(all)
			perSecond := 1e6/lanes[0] + 1e6/lanes[2]
			if got := within(all, end, end+second/10); int64(got) > 3+(perSecond+50)/20+1 {
				t.Errorf("%s: %d slots in the first tenth of a second: a burst", name, got)
			}
		})
	}
}

func TestBackoff_KeepsItsLengthOverAFailover(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		for range 3 {
			b.backOff(c, unknown, second)
			b.probe(c)
		}
		b.backOff(c, unknown, second)
		c.advance(second)
		b.failOver()
		b.acquire(1, 1)
		b.probe(c)
		b.backOff(c, unknown, second)
		if got := b.backoffEnd() - c.us(); got != 16*second {
			t.Errorf("a backoff of %d us, want 16 s after one of 8", got)
		}
	})
}

func TestBackoff_GrantsNoSlotInRandomRuns(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 51))
			b.awake()
			var all []int64
			until := int64(0)
			for range 200 {
				happened := ""
				switch rng.IntN(25) {
				case 0:
					happened = backoffEvent(rng.Int64N(second), 100_000, c.us()-rng.Int64N(second))
				case 1:
					happened = backoffEvent(unknown, 100_000, c.us()-rng.Int64N(second/10))
				case 2:
					c.advance(rng.Int64N(4 * second))
				default:
					c.advance(rng.Int64N(60_000))
				}
				if happened != "" {
					b.acquireAfter(0, 0, happened)
					until = b.backoffEnd()
				}
				g := b.acquire(rng.IntN(100), rng.IntN(100))
				if len(g.all()) > 0 && rng.IntN(3) == 0 {
					b.acquireAfter(0, 0, resumeEvent(g.all()[0]))
				}
				for _, s := range g.all() {
					if s < until {
						t.Fatalf("seed %d: a slot %d us before the end of a backoff", seed, until-s)
					}
				}
				all = append(all, g.all()...)
			}
			slices.Sort(all)
			if got := mostInWindow(all, second); got > 474 {
				t.Fatalf("seed %d: %d slots in a second, the bound is 474", seed, got)
			}
		})
	}
}
