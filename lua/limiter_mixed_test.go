package lua_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// with returns another caller of the same source. Its quota has the given revision, partitions
// (lanes) and further sections (more).
func (b bucket) with(revision int64, lanes []int64, more string) bucket {
	b.revision, b.lanes, b.more = revision, lanes, more
	return b
}

var halfLanes = []int64{20_000, 5, 5_716, 7, 0, 0} // partitions with half the rate of nexonLanes

func TestRevision_NewestIsInForce(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		old := newBucket(t, rdb)
		old.more = windowLog(60*second, 50, 40)
		old.awake()
		if g := old.acquire(5, 5); len(g.high) != 5 || len(g.low) != 5 {
			t.Fatalf("got grant %+v", g)
		}
		newer := old.with(1, nexonLanes, windowLog(60*second, 20, 15))
		newer.stopped = 1
		for _, b := range []bucket{newer, old} {
			if g := b.acquire(5, 5); len(g.all()) > 0 || g.refusalHigh != refusedByStop || g.refusalLow != refusedByStop || g.backHigh < 1 || g.backHigh > second {
				t.Errorf("revision %d after the breaker closed: %+v", b.revision, g)
			}
		}
		newest := newer.with(2, nexonLanes, windowLog(60*second, 20, 15))
		newest.stopped = 0
		newest.acquire(0, 0)
		if g := old.acquire(0, 50); len(g.low) != 5 {
			t.Errorf("a caller with the oldest revision got %d slots, the newest has 5 left for LOW", len(g.low))
		}
		if g := newer.acquire(50, 0); len(g.high) != 5 {
			t.Errorf("a caller with the revision that stopped got %d slots, the newest has 5 left", len(g.high))
		}
		raised := newest.with(3, nexonLanes, windowLog(60*second, 30, 25))
		if g := raised.acquire(50, 0); len(g.high) != 10 {
			t.Errorf("raised from 20 to 30, HIGH got %d at once", len(g.high))
		}
	})
}

func TestRevision_ChangedLimitAllowsNoSecondBurst(t *testing.T) {
	t.Parallel()
	// bound returns the maximum number of slots of the partitions in a window.
	bound := func(lanes []int64, window int64) int {
		n := lanes[1] + lanes[3] + window/lanes[2]
		if lanes[0] > 0 {
			n += window / lanes[0]
		}
		return int(n)
	}
	all := [][]int64{
		nexonLanes, halfLanes,
		{90_910, 1, 25_642, 24, 0, 0},  // a much slower rate than nexonLanes, and a burst of 24 in one partition
		{10_000, 30, 2_858, 60, 0, 0},  // the rate of nexonLanes with a greater burst
		{0, 0, 2_223, 15, 0, 0},        // partitions without a reserve for HIGH
		{20_000, 10, 10_000, 15, 0, 0}, // a slower rate than nexonLanes with the same burst
	}
	for seed := range uint64(20) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 61))
			from, to := all[rng.IntN(len(all))], all[rng.IntN(len(all))]
			b.lanes = from
			b.awake()
			var before, after []int64
			for range rng.IntN(40) {
				before = append(before, b.acquire(rng.IntN(120), rng.IntN(120)).all()...)
				c.advance(rng.Int64N(60_000))
			}
			b = b.with(1, to, "")
			for range 40 {
				after = append(after, b.acquire(rng.IntN(120), rng.IntN(120)).all()...)
				c.advance(rng.Int64N(60_000))
			}
			slices.Sort(after)
			if got := mostInWindow(after, second); got > bound(to, second) {
				t.Errorf("seed %d: %d slots in a second granted by partitions %v, their bound is %d", seed, got, to, bound(to, second))
			}
			union := slices.Concat(before, after)
			slices.Sort(union)
			for _, window := range []int64{10_000, 50_000, 200_000, second} {
				if got, most := mostInWindow(union, window), max(bound(from, window), bound(to, window)); got > most {
					t.Errorf("seed %d: %d slots in %d us over the change of partitions %v to %v, the bound of the greater is %d",
						seed, got, window, from, to, most)
				}
			}
		})
	}
}

func TestRevision_FasterRateRepeatsNoSlot(t *testing.T) {
	t.Parallel()
	for given := range 26 { // the partitions grant at most 25 slots at once
		simulated(t, func(b bucket, c *clock) {
			b.lanes = []int64{20_000, 10, 10_000, 15, 0, 0}
			b.awake()
			all := b.acquire(given, 0).high
			b = b.with(1, nexonLanes, "")
			all = append(all, b.acquire(100, 0).high...)
			slices.Sort(all)
			for _, window := range []int64{0, 10_000, 50_000} {
				if got, most := mostInWindow(all, window), 25+int(window/10_000+window/2_858); got > most {
					t.Errorf("%d given before: %d slots in %d us, the bound is %d", given, got, window, most)
				}
			}
		})
	}
}

func TestRevision_NewWindowLogBeginsUsedUp(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const reach = 5 * second
		b.awake()
		b.acquire(20, 20) // these calls are in no log, because the quota has no sliding-window log yet
		changed := c.us()
		b = b.with(1, nexonLanes, windowLog(reach, 10, 10))
		var all []int64
		for range 80 {
			all = append(all, b.acquire(20, 0).high...)
			c.advance(100_000)
		}
		if len(all) != 10 || all[0] < changed+reach {
			t.Errorf("%d slots, the first %d us after the change; want 10, and none for %d", len(all), all[0]-changed, reach)
		}
	})
}

func TestRevision_ChangedLogOrDayKeepsItsCount(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const reach = 60 * second
		b.zone = time.UTC
		b.more = windowLog(reach, 40, 30) + day(100, 0)
		b.awake()
		want := func(step string, high, used int) {
			t.Helper()
			g := b.acquire(99, 0)
			if len(g.high) != high || g.used != int64(used) {
				t.Errorf("%s: HIGH got %d slots, want %d; the day counts %d, want %d", step, len(g.high), high, g.used, used)
			}
		}
		change := func(revision int64, more string) { b.revision, b.more = revision, more }
		want("forty", 40, 40)
		change(1, windowLog(reach, 20, 10)+day(100, 0))
		want("lowered to twenty", 0, 40)
		change(2, windowLog(reach, 50, 10)+day(100, 0))
		want("raised to fifty", 10, 50)
		c.advance(reach - 2*second)
		change(3, windowLog(reach, 20, 10)+day(100, 0))
		want("lowered again, shortly before the first fifty leave", 0, 50)
		c.advance(2 * second)
		want("when they have left", 20, 70)
		change(4, windowLog(reach, 70, 10)+day(80, 0))
		want("a day of 80", 10, 80)
		change(5, windowLog(reach, 70, 10)+day(75, 0))
		want("a day of 75, after 80", 0, 80)
		change(6, windowLog(reach, 70, 10)+day(200, 0))
		want("a day of 200", 40, 120)
	})
}

func TestRevision_RaisedLimitServesWaitersAtOnce(t *testing.T) {
	t.Parallel()
	// Many waiters were rejected, with different times for their next calls. After the limit is
	// raised, waiters must get slots at once nevertheless.
	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(60*second, 10, 5)
		b.awake()
		for range 30 {
			b.acquire(20, 20)
		}
		b = b.with(1, nil, windowLog(60*second, 50, 30))
		g := b.acquire(20, 0)
		g.low = b.acquire(0, 20).low
		if len(g.high) != 20 || len(g.low) != 0 {
			t.Fatalf("got grant %+v", g)
		}
		if g := b.acquire(50, 0); g.backHigh > 60*second {
			t.Errorf("HIGH must call again in %d s, the first slot is free in 60", g.backHigh/second)
		}
	})
}

func TestRevision_StricterQuotaAppliesWhileSent(t *testing.T) {
	t.Parallel()
	const reach = 2 * second
	for name, c := range map[string]struct {
		a, b      bucket
		high, low bool
		both, one int // expected slots in 2 s: while callers a and b both send their quotas, and while b calls alone
	}{
		"lanes": {
			a:    bucket{lanes: []int64{20_000, 5, 2_858, 15, 0, 0}}, // partition high allows 50 calls/s in quota a, 100 calls/s in quota b
			b:    bucket{lanes: []int64{10_000, 10, 5_716, 7, 0, 0}}, // partition shared allows 350 calls/s in quota a, 175 calls/s in quota b
			high: true, both: 100 + 350, one: 200 + 350,
		},
		"a lane that one has not": {
			a:    bucket{lanes: []int64{0, 0, 2_858, 15, 0, 0}},
			b:    bucket{lanes: []int64{10_000, 10, 5_716, 7, 0, 0}},
			high: true, both: 350, one: 200 + 350,
		},
		"logs":               {a: bucket{more: windowLog(reach, 20, 20)}, b: bucket{more: windowLog(reach, 30, 10)}, high: true, both: 20, one: 30},
		"LOW's of logs":      {a: bucket{more: windowLog(reach, 20, 20)}, b: bucket{more: windowLog(reach, 30, 5)}, low: true, both: 5, one: 5},
		"LOW's of the laxer": {a: bucket{more: windowLog(reach, 30, 5)}, b: bucket{more: windowLog(reach, 20, 20)}, low: true, both: 5, one: 20},
		"a log one knows":    {a: bucket{more: windowLog(reach, 5, 5)}, b: bucket{more: windowLog(second, 18, 18)}, high: true, both: 5, one: 36},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(b bucket, clock *clock) {
				a := b.with(0, c.a.lanes, c.a.more)
				b = b.with(0, c.b.lanes, c.b.more)
				a.awake()
				b.awake()
				measure := func(b bucket, others ...bucket) int {
					from, got := clock.us(), 0
					for clock.us() < from+6*second {
						g := b.acquire(boolArg(c.high)*100, boolArg(c.low)*100)
						got += within(g.all(), from+2*second, from+6*second)
						clock.advance(100_000)
						for _, o := range others {
							o.acquire(0, 0)
						}
					}
					return got / 2
				}
				if got := measure(b, a); got > c.both*103/100+1 || got < c.both*97/100-1 {
					t.Errorf("%d slots in 2 s, both allow %d", got, c.both)
				}
				if got := measure(a, b); got > c.both*103/100+1 || got < c.both*97/100-1 {
					t.Errorf("%d slots in 2 s for the other, both allow %d", got, c.both)
				}
				from := clock.us()
				for clock.us() < from+2*epoch+second {
					b.acquire(0, 0)
					clock.advance(100_000)
				}
				clock.advance(reach)
				if got := measure(b); got > c.one*103/100+1 || got < c.one*97/100-1 {
					t.Errorf("%d slots in 2 s after the other stopped, want %d", got, c.one)
				}
			})
		})
	}
}

func TestRevision_StricterNeedsOneCallPerEpoch(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		strict := b.with(0, nil, windowLog(10*second, 3, 3))
		b = b.with(0, nil, windowLog(10*second, 90, 90))
		b.awake()
		strict.awake()
		var all []int64
		next := c.us()
		for range 600 {
			if c.us() >= next {
				strict.acquire(0, 0)
				next += epoch - 100_000
			}
			all = append(all, b.acquire(5, 5).all()...)
			c.advance(100_000)
		}
		if got := mostInWindow(all, 10*second-1); got > 3 {
			t.Errorf("%d slots in ten seconds, a caller that calls once an epoch allows 3", got)
		}
	})
}

func TestRevision_CombinesTheStricterDay(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(100, 0)
		other := b
		other.more = day(1000, 0.01) // by this policy alone, LOW would have 576 calls for the rest of the day
		b.awake()
		other.awake()
		for _, caller := range []bucket{other, b} {
			if g := caller.acquire(0, 5); len(g.low) > 0 || g.refusalLow != 2 {
				t.Errorf("LOW got %+v, the reserve is more than the day", g)
			}
		}
		got := 0
		for range 30 {
			got += len(b.acquire(10, 0).all()) + len(other.acquire(10, 0).all())
			c.advance(20_000)
		}
		if got != 100 {
			t.Errorf("HIGH got %d calls, one of the two allows 100 a day", got)
		}
	})
}

func TestRevision_CallersWithoutADayKeepTheDay(t *testing.T) {
	t.Parallel()
	simulated(t, func(dayless bucket, c *clock) {
		dayless.lanes = wideLanes
		b := dayless
		b.onDay(100, 0)
		b.awake()
		got := 0
		for i := range 100 {
			if i%10 == 0 {
				b.acquire(0, 0)
			}
			got += len(dayless.acquire(1, 1).all())
			c.advance(200_000)
		}
		if got != 100 {
			t.Errorf("the caller without a day got %d calls of a day of 100", got)
		}
		c.set(time.Date(2027, 1, 16, 0, 0, 9, 500_000_000, time.UTC))
		b.acquire(0, 0)
		b.acquireAfter(0, 0, used(c.now.Add(-9500*time.Millisecond), 100, c.now, 1))
		got = 0
		for i := range 50 { // calls from 9.5 s to 14.5 s after midnight; the calls of the first 0.5 s count in both days
			got += len(dayless.acquire(5, 0).all())
			if i%5 == 4 {
				b.acquire(0, 0)
			}
			c.advance(100_000)
		}
		if got < 75 || got > 100 {
			t.Errorf("the caller without a day got %d calls of the new day of 100", got)
		}
		c.advance(2*epoch + second) // no caller with a day policy has called for 6 s, so the script drops the day
		if g := dayless.acquire(50, 50); len(g.all()) != 100 {
			t.Errorf("alone it got %d", len(g.all()))
		}
		// A caller that has a day policy again must restore the day's count first.
		b.acquire(0, 0)
		if g := dayless.acquire(5, 5); len(g.all()) > 0 || g.refusalHigh != refusedByDayCount {
			t.Errorf("before the day is counted: %+v", g)
		}
		b.acquireAfter(0, 0, used(endOfDay(c.now, b.zone), 95, c.now, 1))
		if g := dayless.acquire(9, 0); len(g.high) != 5 {
			t.Errorf("of the 5 that are left it got %d", len(g.high))
		}
	})
}

func TestRevision_StopKeepsTheCounts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 62))
			b.more = windowLog(10*second, 90, 80)
			b.awake()
			stale := b
			var all []int64
			for revision := range int64(20) {
				b.revision, b.stopped = revision, int(revision%2)
				for range 1 + rng.IntN(6) {
					g := b.acquire(rng.IntN(40), rng.IntN(40))
					if b.stopped == 1 && (len(g.all()) > 0 || len(stale.acquire(5, 5).all()) > 0) {
						t.Fatalf("seed %d: got grant %v while stopped", seed, g)
					}
					all = append(all, g.all()...)
					c.advance(rng.Int64N(200_000))
				}
			}
			if len(all) == 0 || mostInWindow(all, 10*second-1) > 90 || len(b.windowLogs()[0]) != min(90, len(all)) {
				t.Errorf("seed %d: %d slots, at most %d in ten seconds of 90, the log has %d",
					seed, len(all), mostInWindow(all, 10*second-1), len(b.windowLogs()[0]))
			}
		})
	}
}
