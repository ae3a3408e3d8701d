package lua_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const (
	noRateCap = 0
	never     = 86_400 * second // LOW's minimum interval for a rate cap of 0
)

// lowRate measures LOW's slots per second during the next `duration` us.
func lowRate(b bucket, c *clock, duration int64) float64 {
	from := c.us()
	_, low, _ := play(b, c, duration, true, []process{{low: 200, at: from}})
	return float64(within(low, from, from+duration)) * second / float64(duration)
}

func TestRateCap_BindsLowAlone(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.awake()
		b.rateCap = digits(never, never, b.acquire(0, 0).now)
		b.acquire(0, 1)
		g := b.acquire(20, 20)
		if len(g.high) != 20 || len(g.low) > 0 || g.refusalLow != refusedByRateCap || g.backLow < 1 {
			t.Errorf("under a rate cap of 0: %+v", g)
		}
		b.rateCap = ""
		if g := b.acquire(0, 1); len(g.low) != 1 {
			t.Errorf("without the rate cap: %+v", g)
		}
	})
}

func TestRateCap_SetsLowsRate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, from int64 }{
		"100 a second, then 20":   {10_000, 50_000},
		"20 a second, then 100":   {50_000, 10_000},
		"none, then 50 a second":  {noRateCap, 20_000},
		"50 a second, then none":  {20_000, noRateCap},
		"above the lanes, then 5": {1_000, 200_000},
		"nothing, then 50":        {never, 20_000},
		"nothing, then none":      {never, noRateCap},
		"50 a second, then 0":     {20_000, never},
	} {
		for _, sections := range []string{"", day(10_000_000, 0)} { // without a day policy, and with one that allows 174 calls a second in the 16 hours left
			t.Run(fmt.Sprintf("%s, day %t", name, sections != ""), func(t *testing.T) {
				simulated(t, func(b bucket, clock *clock) {
					b.more = sections
					lanes := 1e6 / 2858.0
					if b.more != "" {
						b.zone = time.UTC
						lanes = 10_000_000 / 16. / 3600
					}
					rate := func(interval int64) float64 {
						switch interval {
						case noRateCap:
							return lanes
						case never:
							return 0
						}
						return min(lanes, 1e6/float64(interval))
					}
					b.awake()
					moment := clock.us() + 21*second
					b.rateCap = digits(c.before, c.from, moment)
					b.acquire(0, 1) // take the one slot that LOW gets even under a cap of 0
					clock.advance(second)
					if got, want := lowRate(b, clock, 5*second), rate(c.before); math.Abs(got-want) > 0.05*want+0.01 {
						t.Errorf("before the moment LOW gets %.1f a second, want %.1f", got, want)
					}
					clock.set(time.UnixMicro(moment))
					if got, want := lowRate(b, clock, 5*second), rate(c.from); math.Abs(got-want) > 0.05*want+0.01 {
						t.Errorf("from the moment on LOW gets %.1f a second, want %.1f", got, want)
					}
				})
			})
		}
	}
}

func TestRateCap_ZeroEndsSoonAfterItsHour(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.more, b.zone = day(20_000_000, 0), time.UTC
		b.awake()
		moment := c.us() + 600*second
		b.rateCap = digits(never, noRateCap, moment)
		processes := []process{{low: 10, at: c.us()}, {low: 10, at: c.us()}, {low: 10, at: c.us()}}
		_, low, calls := play(b, c, 630*second, true, processes)
		early, late := within(low, 0, moment), within(low, moment, c.us())
		t.Logf("%d calls, %d slots before, %d after", calls, early, late)
		if early > 1 { // a cap of 0 makes LOW's minimum interval a day, so LOW gets at most one slot
			t.Errorf("LOW got %d slots under a rate cap of 0", early)
		}
		if late < 20*200 { // in the 30 s after the cap has ended, LOW must get at least 4000 slots: 20 s at 200 a second
			t.Errorf("LOW got %d slots in the half minute after it, its pace is 347 a second", late)
		}
		if calls-len(low) > 1000 {
			t.Errorf("%d calls for %d slots", calls, len(low))
		}
	})
}

func TestRateCap_DoesNotChangeHigh(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.rateCap = digits(100_000, never, c.us()+5*second)
		from := c.us()
		high, low := saturate(b, c, 10*second)
		if got := within(high, from, from+10*second); got < 4480 {
			t.Errorf("HIGH got %d slots in 10 s of 450 a second", got)
		}
		if len(low) > 55 {
			t.Errorf("LOW got %d slots in 5 s of 10 a second", len(low))
		}
	})
}
