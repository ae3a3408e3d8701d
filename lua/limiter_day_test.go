package lua_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

const margin = 10 * second // a call less than this time from midnight counts in both days

const maxRetry = 10 * second // a rejected caller calls again after this time at the latest

// onDay sets a quota with a day policy, and with partitions that never reject.
func (b *bucket) onDay(limit int64, reserve float64) {
	b.lanes, b.more, b.zone = wideLanes, day(limit, reserve), time.UTC
}

// endOfDay returns the end of the day in which a call at the time `now` counts.
func endOfDay(now time.Time, zone *time.Location) time.Time {
	year, month, day := now.Add(-margin * time.Microsecond).In(zone).Date()
	return time.Date(year, month, day+1, 0, 0, 0, 0, zone)
}

// used returns the event that restores a day's count: the day that ends at `end` had n calls at
// the time `at`, and since then at most `rate` calls a second.
func used(end time.Time, n int64, at time.Time, rate int64) string {
	return fmt.Sprintf("used %d %d %d %d", end.UnixMicro(), n, at.UnixMicro(), rate)
}

func TestDay_HighGetsTheLastCall(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.onDay(30, 0)
		if g := b.acquire(9, 9); len(g.all()) > 0 || g.refusalHigh != refusedByDayCount || g.refusalLow != refusedByDayCount {
			t.Fatalf("got grant %+v before it is known what the day had", g)
		}
		b.awake()
		var all []int64
		for range 4 {
			g := b.acquire(9, 0)
			if all = append(all, g.high...); g.used != int64(len(all)) {
				t.Errorf("%d calls, the day counts %d", len(all), g.used)
			}
		}
		g := b.acquire(5, 5)
		if len(all) != 30 || len(g.all()) > 0 || g.refusalHigh != 2 || g.refusalLow != 2 || g.backHigh < 1 || g.backHigh > maxRetry {
			t.Errorf("of 30 calls a day HIGH got %d, then %+v", len(all), g)
		}
		if ttl, err := rdb.PTTL(t.Context(), b.key).Result(); err != nil || ttl >= 0 {
			t.Errorf("the state expires in %v (%v): then the day would be forgotten", ttl, err)
		}
	})
}

// paceNow measures LOW's slots per second, over about 250 slots, and returns the expected rate
// too.
func paceNow(b bucket, c *clock, limit int64, reserve float64) (got, want float64) {
	count := b.number("used")
	seconds := endOfDay(c.now, time.UTC).Sub(c.now).Seconds() + margin/second
	want = (float64(limit-count) - reserve*seconds) / seconds
	from, enough := c.us(), int64(250/want*second)
	_, low, _ := play(b, c, enough, true, []process{{low: 50, at: from}})
	return float64(within(low, from, from+enough)) * second / float64(enough), want
}

func TestDay_PacesLow(t *testing.T) {
	t.Parallel()
	const limit, reserve = 100_000, 0.5
	simulated(t, func(b bucket, c *clock) {
		b.onDay(limit, reserve)
		c.set(time.Date(2027, 1, 16, 0, 0, 10, 0, time.UTC))
		b.awake()
		before := 0.0
		for _, step := range []struct {
			when   string
			at     int // hour of the day at which LOW's pace is measured
			high   int64
			faster bool
		}{
			{"at the start", 0, 0, false},
			{"after HIGH has used 20,000 within minutes", 1, 20_000, false},
			{"after HIGH has slept until noon", 12, 0, true},
			{"after it has slept until the evening", 22, 0, true},
		} {
			c.set(time.Date(2027, 1, 16, step.at, 0, 10, 0, time.UTC))
			b.setNumber("used", b.number("used")+step.high)
			got, want := paceNow(b, c, limit, reserve)
			t.Logf("%s: LOW gets %.3f a second", step.when, got)
			if math.Abs(got-want) > 0.015*want {
				t.Errorf("%s: LOW gets %.3f a second, want %.3f", step.when, got, want)
			}
			if step.at > 0 && (got > before) != step.faster {
				t.Errorf("%s: LOW gets %.3f a second, before it got %.3f", step.when, got, before)
			}
			before = got
		}
	})
}

func TestDay_LowIsNeverAheadOfItsPace(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(1_000_000, 0)
		c.set(time.Date(2027, 1, 16, 0, 0, 10, 0, time.UTC))
		b.awake()
		c.advance(8 * 3600 * second) // 8 hours without calls: LOW's unused calls must be spread over the rest of the day
		_, low, _ := play(b, c, 20*second, true, []process{{low: 500, at: c.us()}})
		if got := mostInWindow(low, second); got > 17+2 {
			t.Errorf("LOW got %d slots in a second, its pace is 17", got)
		}
	})
}

func TestDay_PaceRecoversAtOnce(t *testing.T) {
	t.Parallel()
	// HIGH has used more than its share, and one call is left for LOW. While HIGH pauses, its
	// reserve becomes available to LOW second by second.
	simulated(t, func(b bucket, c *clock) {
		const limit, reserve = 100_000, 1
		b.onDay(limit, reserve)
		c.set(time.Date(2027, 1, 16, 12, 0, 0, 0, time.UTC))
		b.awake()
		left := reserve*int64(endOfDay(c.now, time.UTC).Sub(c.now).Seconds()+margin/second) + 2
		b.setNumber("used", limit-left)
		waits := process{low: 50, at: c.us()}
		_, low, _ := play(b, c, 3600*second, true, []process{waits})
		// HIGH's reserve of one call a second frees 60 calls for LOW in the first minute, and
		// 3,600 in an hour. LOW's pace rises to a call per 11 s, which allows about 160 calls in
		// this hour.
		if len(low) < 100 {
			t.Errorf("LOW got %d calls in an hour in which HIGH used none of its 3600", len(low))
		}
		c.advance(4 * 3600 * second)
		if got, want := paceNow(b, c, limit, reserve); got < 0.98*want {
			t.Errorf("LOW gets %.3f calls a second, its pace is %.3f", got, want)
		}
	})
}

func TestDay_KeepsHighReserveToTheEnd(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const limit, reserve = 20_000, 0.1
		b.onDay(limit, reserve)
		c.set(time.Date(2027, 1, 16, 0, 0, 10, 0, time.UTC))
		b.awake()
		b.setNumber("used", limit-8640) // all calls are used except HIGH's reserve
		// At 0.1 calls a second, HIGH's reserve frees the next call for LOW in 10 s.
		if g := b.acquire(0, 5); len(g.low) > 0 || g.refusalLow != 2 || g.backLow < maxRetry-second || g.backLow > maxRetry {
			t.Errorf("LOW got %+v of HIGH's reserve", g)
		}
		c.advance(4 * second)
		if g := b.acquire(0, 5); len(g.low) > 0 || g.backLow < 5*second || g.backLow > 7*second {
			t.Errorf("LOW got %+v of HIGH's reserve 4 s later, want the next call in 6 s", g)
		}
		high, low := 0, 0
		for range 200 { // HIGH uses its reserve evenly during the day
			c.advance(10 * second)
			g := b.acquire(1, 5)
			high, low = high+len(g.high), low+len(g.low)
		}
		if high != 200 || low > 1 { // LOW can get one call if it requests just before HIGH
			t.Errorf("HIGH got %d of its 200 calls, LOW %d", high, low)
		}
	})
}

func TestDay_LowUsesItsBudgetIfHighIsIdle(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(1000, 0.03)
		c.set(time.Date(2027, 1, 16, 22, 0, 0, 0, time.UTC))
		b.awake()
		_, low, _ := play(b, c, 7_204*second, true, []process{{low: 50, at: c.us()}})
		if len(low) < 990 || len(low) > 1000 {
			t.Errorf("LOW got %d of 1000 calls, HIGH none", len(low))
		}
	})
}

func TestDay_GrantsNothingUntilCountIsRestored(t *testing.T) {
	t.Parallel()
	const rate = 450
	const ahead = rate * horizon / second // number of slots that can be reserved in advance, up to the horizon
	now := time.Date(2027, 1, 16, 12, 0, 0, 0, time.UTC)
	today, yesterday := now.Add(12*time.Hour), now.Add(-12*time.Hour)
	for name, c := range map[string]struct {
		inRedis  int64 // number of calls that the state in Redis counts for the day after a failover; -1: the whole state is lost
		reported string
		want     int64
	}{
		"nothing was ever written":          {-1, "used 0 0 0 0", 0},
		"the checkpoint and what came then": {-1, used(today, 70_000, now.Add(-10*time.Second), rate), 70_000 + 10*rate + ahead},
		"a replica that has more":           {90_000, used(today, 70_000, now.Add(-10*time.Second), rate), 90_000},
		"a replica that has less":           {60_000, used(today, 70_000, now.Add(-10*time.Second), rate), 70_000 + 10*rate + ahead},
		"a checkpoint of this moment":       {-1, used(today, 70_000, now, rate), 70_000 + ahead},
		"of a clock that is ahead":          {-1, used(today, 70_000, now.Add(time.Second), rate), 70_000},
		"a checkpoint of yesterday's":       {-1, used(yesterday, 1_000_000, yesterday.Add(-time.Minute), 1), 100},
		"one of the day before":             {-1, used(yesterday.Add(-24*time.Hour), 1_000_000, yesterday.Add(-25*time.Hour), rate), 0},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(b bucket, clock *clock) {
				b.onDay(20_000_000, 0)
				clock.set(now.Add(-2 * time.Second))
				if c.inRedis >= 0 {
					b.awake()
					b.setNumber("used", c.inRedis)
					b.failOver()
				}
				for clock.set(now.Add(-2 * time.Second)); clock.now.Before(now); clock.advance(100_000) {
					if g := b.acquire(5, 5); len(g.all()) > 0 || g.refusalHigh != refusedByDayCount || g.refusalLow != refusedByDayCount ||
						g.backHigh < 1 || g.backHigh > 100_000 || g.backLow < 1 || g.backLow > 100_000 {
						t.Fatalf("before the count is restored: %+v", g)
					}
				}
				if g := b.acquireAfter(0, 0, c.reported); g.used != c.want {
					t.Errorf("the day counts %d calls, want %d", g.used, c.want)
				}
				g := b.acquireAfter(1, 1, used(today, 5_000_000, now, rate)) // another process sends a saved count again, which must have no effect
				if len(g.high) != 1 || len(g.low) != 1 || g.used != c.want+2 {
					t.Errorf("after the count is restored: %+v, want %d calls", g, c.want+2)
				}
			})
		})
	}
}

func TestDay_LossAtMidnightKeepsTheNewDay(t *testing.T) {
	t.Parallel()
	midnight := time.Date(2027, 1, 16, 0, 0, 0, 0, time.UTC)
	for _, lostAt := range []time.Duration{-8 * time.Second, 3 * time.Second, 12 * time.Second} {
		simulated(t, func(b bucket, c *clock) {
			const rate = 10
			b.onDay(5000, 0)
			c.set(midnight.Add(-40 * time.Second))
			b.awake()
			var all []int64
			checkpoint, lost := "", false
			for c.now.Before(midnight.Add(60 * time.Second)) {
				if !lost && !c.now.Before(midnight.Add(lostAt)) {
					b.forget()
					b.acquire(0, 0)
					b.acquireAfter(0, 0, checkpoint)
					lost = true
				}
				g := b.acquire(rate, 0)
				all = append(all, g.high...)
				if c.now.Second()%15 == 0 && !lost {
					checkpoint = used(endOfDay(c.now, b.zone), g.used, c.now, rate)
				}
				c.advance(second)
			}
			made := int64(within(all, midnight.UnixMicro()-margin, math.MaxInt64))
			if g := b.acquire(0, 0); g.used < made {
				t.Errorf("lost %v from midnight: the new day counts %d calls, %d were made", lostAt, g.used, made)
			}
		})
	}
}

func TestDay_RefundsOnlyItsOwnCalls(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(1000, 0)
		midnight := time.Date(2027, 1, 16, 0, 0, 0, 0, time.UTC)
		c.set(midnight.Add(-time.Hour))
		b.awake()
		c.advance(second)
		refund := func(slots ...int64) int64 {
			reported := ""
			for _, s := range slots {
				reported += fmt.Sprintf("refund %d ", s)
			}
			return b.acquireAfter(0, 0, reported).used
		}
		g := b.acquire(5, 0)
		if got := refund(g.high[0]); got != 4 {
			t.Errorf("after a refund the day counts %d calls, want 4", got)
		}
		if got := refund(g.high[1:3]...); got != 2 {
			t.Errorf("after two more it counts %d, want 2", got)
		}
		if got := refund(c.us() - 3600*second); got != 2 {
			t.Errorf("a refund from before the state's birth left %d, want 2", got)
		}
		c.set(midnight.Add(-5 * time.Second)) // a call near midnight counts in both days, and the script ignores its refund
		g = b.acquire(3, 0)
		if got := refund(g.high...); got != 5 {
			t.Errorf("refunded near midnight, the day counts %d, want 5", got)
		}
		c.set(midnight.Add(time.Minute))
		if got := refund(slices.Concat(g.high, []int64{midnight.UnixMicro() - 3600*second})...); got != 3 {
			t.Errorf("the new day counts %d, want the 3 calls around midnight", got)
		}
	})
}
