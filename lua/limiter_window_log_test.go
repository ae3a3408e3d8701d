package lua_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// A log's reach is 1 µs longer than its window. So a closed window of reach - 1 µs contains at
// most as many slots as the log allows.

func TestWindowLog_GrantsAlikeOnEveryRedis(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		const reach = 60 * second
		b := newBucket(t, rdb)
		b.lanes, b.more = nil, windowLog(reach, 5, 3)
		b.awake()
		low := b.acquire(0, 9)
		if len(low.low) != 3 || low.refusalLow != 1 || low.backLow != 10*second {
			t.Errorf("LOW got %+v, want 3 of 5 slots, and the next call in 10 s: a slot can become free", low)
		}
		high := b.acquire(9, 0)
		if len(high.high) != 2 || high.high[0] != high.now || high.refusalHigh != 1 || high.backHigh != 10*second {
			t.Errorf("HIGH got %+v, want the 2 that LOW left, at once", high)
		}
		if logs := b.windowLogs(); len(logs) != 1 || !slices.Equal(logs[0], slices.Concat(low.low, high.high)) {
			t.Errorf("the log holds %v", logs)
		}
		if ttl, err := rdb.PTTL(t.Context(), b.key).Result(); err != nil || ttl >= 0 {
			t.Errorf("the state expires in %v (%v): it must never expire", ttl, err)
		}
	})
}

func TestWindowLog_NeverExceedsItsSlots(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 31))
			n, reach := 1+rng.Int64N(40), 200_000+rng.Int64N(3*second)
			low := 1 + rng.Int64N(n)
			b.lanes, b.more = nil, windowLog(reach, n, low)
			b.awake()
			var all []int64
			for range 120 {
				switch rng.IntN(8) {
				case 0:
					c.advance(rng.Int64N(2 * reach)) // advance the clock, so that a burst is possible after the idle time
				case 1: // the clock stands still, so these calls come at the same instant as the previous calls
				default:
					c.advance(rng.Int64N(2 * reach / n))
				}
				g := b.acquire(rng.IntN(int(n)+3), rng.IntN(int(n)+3))
				all = append(all, g.high...)
				for _, s := range g.low {
					all = append(all, s)
					if got := within(all, s-reach+1, s+1); got > int(low) {
						t.Fatalf("seed %d: LOW took a slot as the %dth of %d in a reach, its share is %d", seed, got, n, low)
					}
				}
			}
			if !slices.IsSorted(all) {
				t.Fatalf("seed %d: the slots are out of order, and the log with them", seed)
			}
			if got := mostInWindow(all, reach-1); got > int(n) {
				t.Fatalf("seed %d: %d slots in a reach, the log has %d", seed, got, n)
			}
		})
	}
}

func TestWindowLog_SaturatedIsUsedUp(t *testing.T) {
	t.Parallel()
	const reach, n, low = 60_051_000, 40, 30
	for name, c := range map[string]struct {
		processes []process
		want      int // the expected number of slots within `reach`, which is about a minute
	}{
		"LOW of one process":     {[]process{{low: 100}}, low},
		"LOW of three processes": {[]process{{low: 100}, {low: 100}, {low: 7}}, low},
		"HIGH alone":             {[]process{{high: 100}, {high: 100}}, n},
		"both":                   {[]process{{high: 100, low: 100}, {low: 100}}, n},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(b bucket, clock *clock) {
				b.lanes, b.more = nil, windowLog(reach, n, low)
				b.awake()
				for i := range c.processes {
					c.processes[i].at = clock.us()
				}
				high, lows, calls := play(b, clock, 20*reach, true, c.processes)
				from := clock.us() - 15*reach
				got := within(high, from, from+15*reach) + within(lows, from, from+15*reach)
				share := float64(got) / float64(15*c.want)
				t.Logf("%.1f %% of the log, %d calls for %d slots", 100*share, calls, len(high)+len(lows))
				if share < 0.99 {
					t.Errorf("%d slots in 15 reaches of %d", got, c.want)
				}
			})
		})
	}
}

func TestWindowLog_KeepsHighReserve(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const reach = 60_051_000
		b.lanes, b.more = nil, windowLog(reach, 40, 30)
		b.awake()
		rng := rand.New(rand.NewPCG(1, 32))
		flood := []process{{low: 100, at: c.us()}, {low: 100, at: c.us()}}
		play(b, c, 2*reach, true, flood)
		for i := range 60 { // ten HIGH calls in each period of length `reach`, each at a random time in its own tenth
			early := rng.Int64N(reach / 10)
			play(b, c, early, true, flood)
			g := b.acquire(1, 0)
			if len(g.high) != 1 || g.high[0] > g.now+horizon {
				t.Fatalf("HIGH's call %d of ten a reach got %+v", i, g)
			}
			play(b, c, reach/10-early, true, flood)
			if i%10 == 9 { // after ten calls wait `reach` / 10 longer, so that any eleven calls span at least `reach`
				play(b, c, reach/10, true, flood)
			}
		}
	})
}

// Several callers whose slots were rejected call again one after the other. The time between their calls
// is the average time between the slots of their lane.
func TestWindowLog_SpreadsTheNextCallsOfALane(t *testing.T) {
	const reach, slots, low = 2 * second, 10, 5
	simulated(t, func(b bucket, _ *clock) {
		b.lanes, b.more = nil, windowLog(reach, slots, low)
		b.awake()
		b.acquire(slots, 0)
		var high, lows []int64
		for range 4 {
			high = append(high, b.acquire(1, 0).backHigh)
			lows = append(lows, b.acquire(0, 1).backLow)
		}
		for _, lane := range []struct {
			name string
			got  []int64
			gap  int64
		}{{"HIGH", high, reach / slots}, {"LOW", lows, reach / low}} {
			first := int64(reach - horizon)
			if want := []int64{first, first + lane.gap, first + 2*lane.gap, first + 3*lane.gap}; !slices.Equal(lane.got, want) {
				t.Errorf("next calls of %s in us: got %v, want %v", lane.name, lane.got, want)
			}
		}
	})
}

func TestPolicies_AreTakenTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	const reach, longReach, limit = 1_051_000, 10_051_000, 300
	for seed := range uint64(5) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 33))
			b.lanes = []int64{100_000, 2, 50_000, 3, 0, 0}                                            // calls a second: 10 in partition high + 20 in shared
			b.more = partitions(5*second, []int64{0, 0, 200_000, 9, 0, 0}) + windowLog(reach, 9, 7) + // a partitioned window of 5 calls a second
				windowLog(longReach, 40, 30) + day(limit, 0.001)
			b.zone = time.UTC
			b.awake()
			var all, low []int64
			for range 120 {
				c.advance(rng.Int64N(1_000_000))
				before, tats, used := b.windowLogs(), b.tats(), b.number("used")
				g := b.acquire(rng.IntN(6), rng.IntN(6))
				all, low = append(all, g.all()...), append(low, g.low...)
				for i, r := range b.windowLogs() {
					if want := slices.Concat(before[i], g.all()); !slices.Equal(r, want[len(want)-len(r):]) {
						t.Fatalf("seed %d: got grant %v, log %d was %v and is %v", seed, g.all(), i, before[i], r)
					}
				}
				if after := b.number("used"); after != used+int64(len(g.all())) || g.used != after {
					t.Fatalf("seed %d: granted %d, the day's count was %d and is %d (said: %d)", seed, len(g.all()), used, after, g.used)
				}
				if after := b.tats(); len(g.all()) == 0 && !slices.Equal(after, tats) {
					t.Fatalf("seed %d: nothing was granted and the partitions went from %v to %v", seed, tats, after)
				}
			}
			slices.Sort(all)
			slices.Sort(low)
			for _, bound := range []struct {
				what   string
				slots  []int64
				window int64
				most   int
			}{
				{"the first lanes", all, second, 2 + 10 + 3 + 20},
				{"LOW's share of them", low, second, 3 + 20},
				{"the second lanes", all, 5 * second, 9 + 25},
				{"the short log", all, reach - 1, 9},
				{"the long log", all, longReach - 1, 40},
				{"the day", all, 86400 * second, limit},
			} {
				if got := mostInWindow(bound.slots, bound.window); got > bound.most {
					t.Errorf("seed %d: %s: %d slots, the bound is %d", seed, bound.what, got, bound.most)
				}
			}
		})
	}
}

func TestPolicies_RejectionNamesThePolicy(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.more, b.zone = windowLog(10*second, 30, 20)+windowLog(60*second, 60, 60)+day(70, 0), time.UTC
		b.awake()
		want := func(what string, high bool, why int64) {
			t.Helper()
			g := b.acquire(100, 0)
			if !high {
				g = b.acquire(0, 100)
				g.refusalHigh = g.refusalLow
			}
			if g.refusalHigh != why {
				t.Errorf("%s: refused by %d, want %d: %+v", what, g.refusalHigh, why, g)
			}
		}
		want("the log of ten seconds", true, 2)
		c.advance(10 * second)
		want("the log of a minute", true, 3)
		c.advance(60 * second)
		b.acquire(10, 0)
		want("the day", true, 4)
		want("the day", false, 4)

		lanes := b
		lanes.revision, lanes.more, lanes.zone = 1, "", nil
		lanes.acquire(0, 0)
		c.advance(5 * second)
		b = lanes
		want("the lanes", true, 1)
		want("the lanes", false, 1)
	})
}
