package lua_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

func TestState_EmptyBeginsQuiet(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		g := b.acquire(1, 1)
		if len(g.high)+len(g.low) != 0 {
			t.Fatalf("got grant %+v on an empty state", g)
		}
		if g.backHigh < quiet-horizon || g.backHigh > quiet || g.backLow < quiet-horizon {
			t.Errorf("next calls in %d and %d us, quiet lasts %d", g.backHigh, g.backLow, quiet)
		}
	})
}

func TestAcquire_GrantsAlikeOnEveryRedis(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.awake()
		g := b.acquire(40, 80)
		// HIGH gets 10 slots of the partition high and 15 of the partition shared at once, and then
		// slots of both partitions up to the horizon. LOW gets the other slots of the partition
		// shared within the horizon.
		atOnce := 0
		for _, s := range g.high {
			if s == g.now {
				atOnce++
			}
		}
		if len(g.high) != 40 || atOnce != 25 || g.backHigh != 0 {
			t.Errorf("HIGH got %d slots, %d at once, return %d; want 40, 25, 0", len(g.high), atOnce, g.backHigh)
		}
		all := slices.Concat(g.high, g.low)
		for _, s := range all {
			if s < g.now || s > g.now+horizon {
				t.Errorf("slot %d us from now", s-g.now)
			}
		}
		if len(g.low) == 0 || len(g.low) > 52 || g.backLow <= 0 || g.backLow > horizon {
			t.Errorf("LOW got %d slots and calls again in %d us", len(g.low), g.backLow)
		}
		if ttl, err := rdb.PTTL(t.Context(), b.key).Result(); err != nil || ttl >= 0 {
			t.Errorf("the state expires in %v (%v): it must never expire", ttl, err)
		}
	})
}

func TestAcquire_RepliesTheBirthOfTheState(t *testing.T) {
	simulated(t, func(b bucket, c *clock) {
		born := c.us()
		for _, wait := range []int64{0, horizon, 2 * second, 5 * second} { // in the quiet period, and on both paths after it
			c.advance(wait)
			for _, happened := range []string{"", forceFullPath} {
				reply, err := b.run(1, 0, happened)
				if err != nil || reply[4] != born {
					t.Errorf("after %d us: got %v, %v; want the birth %d as fifth number", wait, reply, err, born)
				}
			}
		}
	})
}

func TestAcquire_NoWindowExceedsItsBound(t *testing.T) {
	for seed := range uint64(15) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 2))
			var all, low []int64
			for range 400 {
				switch rng.IntN(10) {
				case 0:
					c.advance(rng.Int64N(3 * second)) // advance the clock, so that a burst is possible after the idle time
				case 1: // the clock stands still, so these calls come at the same instant as the previous calls
				default:
					c.advance(rng.Int64N(30_000))
				}
				g := b.acquire(rng.IntN(120), rng.IntN(120))
				all, low = append(append(all, g.high...), g.low...), append(low, g.low...)
			}
			slices.Sort(all)
			slices.Sort(low)
			if got := mostInWindow(all, second); got > 474 {
				t.Fatalf("seed %d: %d slots in a second, the bound is 474", seed, got)
			}
			if got := mostInWindow(low, second); got > 15+349 {
				t.Fatalf("seed %d: %d LOW slots in a second, the bound is 364", seed, got)
			}
			if got := mostInWindow(all, 1_050_000); got > 497 {
				t.Fatalf("seed %d: %d slots in 1.05 s, the bound is 497", seed, got)
			}
		})
	}
}

func TestAcquire_SaturatedLaneIsNeverIdle(t *testing.T) {
	for _, c := range []struct {
		name       string
		processes  int
		waiters    int
		perPermit  float64
		leastShare float64
	}{
		{"one process", 1, 1000, 0.05, 0.995},
		{"four processes", 4, 1000, 0.05, 0.995},
		{"twelve processes", 12, 200, 0.35, 0.995},
		{"48 single waiters", 48, 1, 1, 0.995},
	} {
		t.Run(c.name, func(t *testing.T) {
			simulated(t, func(b bucket, clock *clock) {
				b.awake()
				processes := make([]process, c.processes)
				for i := range processes {
					processes[i].low, processes[i].at = c.waiters, clock.now.UnixMicro()
				}
				_, low, calls := play(b, clock, 20*second, true, processes)
				slices.Sort(low)
				share := float64(len(low)) / (20 * second / 2_858)
				perPermit := float64(calls) / float64(len(low))
				t.Logf("%d LOW slots, %.2f %% of the partition, %.3f calls a permit", len(low), 100*share, perPermit)
				if share < c.leastShare || perPermit > c.perPermit {
					t.Errorf("want at least %.1f %% and at most %.2f calls a permit", 100*c.leastShare, c.perPermit)
				}
			})
		})
	}
}

func TestAcquire_HighUsesBothPartitions(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		b.awake()
		at := clock.now.UnixMicro()
		high, _, _ := play(b, clock, 10*second, true, []process{{high: 800, at: at}, {high: 800, at: at}})
		if rate := float64(len(high)) / 10; rate < 448 {
			t.Errorf("HIGH got %.1f a second of 450", rate)
		}
	})
}

func TestAcquire_KeepsHighsShareUnderLowLoad(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		b.awake()
		at := clock.now.UnixMicro()
		flood := []process{{low: 1000, at: at}, {low: 1000, at: at}, {low: 1000, at: at}}
		play(b, clock, 2*second, true, flood)
		var waits []int64
		for range 300 { // HIGH requests 90 calls a second, evenly spread
			_, _, _ = play(b, clock, 11_111, true, flood)
			g := b.acquire(1, 0)
			if len(g.high) != 1 {
				t.Fatal("HIGH was refused at 90 a second")
			}
			waits = append(waits, g.high[0]-g.now)
		}
		if worst := slices.Max(waits); worst > 10_000 {
			t.Errorf("HIGH waited up to %d us at 90 a second", worst)
		}
	})
}

func TestState_LostOrForeignBeginsQuiet(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		for name, change := range map[string]func(s string) string{
			"garbled":          func(string) string { return "not a state" },
			"too short":        func(s string) string { return s[:60] },
			"letters in place": func(s string) string { return s[:atNumbers] + "abc" + s[atNumbers+3:] },
			"unknown quota":    func(s string) string { return strings.Replace(s, `{"revision"`, "X", 1) },
			"unknown kind":     func(s string) string { return strings.Replace(s, `"kind":"partitions"`, `"kind":"other"`, 1) },
			"unknown number":   func(s string) string { return strings.Replace(s, `"sharedT"`, `"otherT"`, 1) },
			"no quiet period":  func(s string) string { return strings.Replace(s, `"quiet":`, `"other":`, 1) },
			"a log too many": func(s string) string {
				return strings.Replace(s, "\n\n", "\n"+digits(clock.now.UnixMicro())+"\n", 1)
			},
			"a partition too few": func(s string) string {
				at := strings.Index(s, "\n") + 1
				return s[:at] + s[at+16:]
			},
			"after a failover": func(s string) string {
				return s[:atReplid] + strings.Repeat("f", atNumbers-atReplid) + s[atNumbers:]
			},
			"of a later clock": func(s string) string {
				return strings.Replace(s, digits(b.number("last")), digits(clock.now.UnixMicro()+3600*second), 1)
			},
		} {
			b.awake()
			if g := b.acquire(1, 0); len(g.high) != 1 {
				t.Fatal("not awake")
			}
			b.setState(change(b.state()))
			g := b.acquire(50, 50)
			if len(g.high)+len(g.low) != 0 || g.backLow < quiet-horizon {
				t.Errorf("%s: %+v", name, g)
			}
		}
	})
}

// A state whose number of partitions does not match its quota is replaced by a state that the next call
// can read. Otherwise each call would begin another quiet period.
func TestState_OtherNumberOfPartitionsIsLostOnce(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		for name, tats := range map[string]int{"two partitions": 2, "four partitions": 4} {
			b.awake()
			b.setLine(tatsLine, strings.Repeat(digits(clock.us()), tats))
			b.acquire(1, 1)
			birth := clock.us()
			clock.advance(second)
			b.acquire(1, 1)
			if got := b.look()[1]; got != birth {
				t.Errorf("%s: got a birth %d us after the first call, want 0", name, got-birth)
			}
		}
	})
}

func TestState_LaterFormatIsReadAndKept(t *testing.T) {
	simulated(t, func(b bucket, _ *clock) {
		b.awake()
		b.setState("99" + b.state()[2:] + "fields of a later release")
		if g := b.acquire(1, 1); len(g.high) != 1 || len(g.low) != 1 {
			t.Errorf("a later format stopped this release: %+v", g)
		}
		if s := b.state(); !strings.HasPrefix(s, "99") || !strings.HasSuffix(s, "fields of a later release") {
			t.Errorf("the later release's state became %q", s)
		}
	})
}

func TestState_LowerOfTwoLimitsApplies(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		slow := b
		slow.lanes = []int64{20_000, 5, 5_716, 7, 0, 0} // partitions with half the rate of caller b
		slow.awake()
		slow.acquire(0, 0)
		rate := func() int {
			clock.advance(second)
			at := clock.now.UnixMicro()
			_, low, _ := play(b, clock, second, true, []process{{low: 1000, at: at}})
			return mostInWindow(low, second/2)
		}
		if got := rate(); got > 175/2+7+1 {
			t.Errorf("%d LOW slots in half a second while another process allows 175 a second", got)
		}
		clock.advance(5 * second)
		if got := rate(); got < 350/2 {
			t.Errorf("%d LOW slots in half a second after it stopped", got)
		}
		b.acquire(0, 0)
		if again := slow.acquire(0, 200); len(again.low) > 7+horizon/5_716+1 {
			t.Errorf("the slower process itself got %d slots at once", len(again.low))
		}
	})
}

func TestState_IgnoresASmallClockStepBack(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		b.awake()
		b.acquire(1, 1)
		clock.advance(-5_000)
		if g := b.acquire(1, 1); len(g.high) != 1 || len(g.low) != 1 {
			t.Errorf("%+v", g)
		}
	})
}

func TestAcquire_LowReserveSurvivesHighLoad(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		b.lanes = []int64{10_000, 10, 3_334, 12, 20_000, 2} // calls a second: 100 high + 300 shared + 50 low
		b.awake()
		at := clock.now.UnixMicro()
		_, low, _ := play(b, clock, 10*second, true, []process{{high: 2000, low: 500, at: at}})
		if len(low) < 490 {
			t.Errorf("LOW got %d of the 500 slots of its own partition", len(low))
		}
	})
}

func TestState_FailoverToASlowerClockBeginsQuiet(t *testing.T) {
	simulated(t, func(b bucket, clock *clock) {
		b.awake()
		b.acquire(5, 5)
		b.failOver()
		clock.advance(-5_000)
		if g := b.acquire(5, 5); len(g.high)+len(g.low) > 0 {
			t.Errorf("got grant %+v", g)
		}
	})
}

func TestState_LoweredLimitAllowsNoSecondBurst(t *testing.T) {
	for _, steps := range []int{1, 20, 50, 80, 95, 104, 110} {
		simulated(t, func(b bucket, clock *clock) {
			b.awake()
			var slots []int64
			saturate := func(steps int) {
				for range steps {
					g := b.acquire(200, 200)
					slots = append(append(slots, g.high...), g.low...)
					clock.advance(10_000)
				}
			}
			saturate(steps)
			b.lanes = []int64{90_910, 1, 25_642, 24, 0, 0}
			saturate(200)
			slices.Sort(slots)
			if got := mostInWindow(slots, 1_050_000); got > 497 {
				t.Errorf("changed after %d steps: %d slots in 1.05 s, the bound was 497", steps, got)
			}
		})
	}
}
