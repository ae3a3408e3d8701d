package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

// forceFullPath is an unknown event. The Lua script has a fast path, which it leaves if a call has any
// event. So this event makes the script take the full path.
const forceFullPath = "-"

// calm reports whether the state allows the fast path for a call made at the time `now` (µs). The fast
// path is a shorter computation for a state without pauses or other special conditions.
func (b bucket) calm(now int64) bool {
	b.t.Helper()
	return now < b.number("fastUntil")
}

// bothPaths makes a call twice from the same state: on the script's shorter computation (the fast
// path) and on the complete one (the full path). The replies must be equal. The new states must be
// equal too, except for the name of the server's process: the fast path does not write the name.
// bothPaths reports whether the first call took the fast path.
func (b bucket) bothPaths(nHigh, nLow int) (fast bool) {
	b.t.Helper()
	split := func(state string) (process, others string) {
		return state[atProcess:atNumbers], state[:atProcess] + state[atNumbers:]
	}
	const other = "another server" // 14 characters
	was := b.state()
	before := was[:atProcess] + other + was[atNumbers:]
	b.setState(before)
	first, err := b.run(nHigh, nLow, "")
	if err != nil {
		b.t.Fatal(err)
	}
	process, state := split(b.state())
	b.setState(before)
	second, err := b.run(nHigh, nLow, forceFullPath)
	if err != nil {
		b.t.Fatal(err)
	}
	if !slices.Equal(first, second) {
		b.t.Fatalf("HIGH %d, LOW %d from the state\n%q:\nthe first run returns %v,\nthe full path %v", nHigh, nLow, before, first, second)
	}
	if _, full := split(b.state()); state != full {
		b.t.Fatalf("HIGH %d, LOW %d from the state\n%q:\nthe first run leaves\n%q,\nthe full path\n%q", nHigh, nLow, before, state, full)
	}
	return process == other
}

// anyQuota sets a random quota with partitions. Three of four quotas also have a day policy;
// anyQuota then sets the clock to a minute, an hour or 20 hours before midnight.
func (b *bucket) anyQuota(rng *rand.Rand, c *clock) {
	b.lanes = slices.Clone(nexonLanes)
	if rng.IntN(4) == 0 {
		b.lanes = []int64{0, 0, 2_223, 25, 0, 0} // partitions without a reserve for HIGH
	}
	if rng.IntN(4) == 0 {
		return
	}
	limit := []int64{100, 600, 5000, 20_000_000}[rng.IntN(4)]
	reserve := float64(limit) / 86_400 * []float64{0, 0.1, 0.5, 0.99}[rng.IntN(4)]
	b.zone, b.more = time.UTC, day(limit, reserve)
	left := []time.Duration{time.Minute, time.Hour, 20 * time.Hour}[rng.IntN(3)]
	c.set(time.Date(2027, 1, 16, 0, 0, 0, 0, time.UTC).Add(-left))
}

func TestFastPath_DecidesAsTheFullPath(t *testing.T) {
	t.Parallel()
	calls, byFirst := 0, 0
	for seed := range uint64(60) {
		simulated(t, func(b bucket, c *clock) {
			rng := rand.New(rand.NewPCG(seed, 21))
			b.anyQuota(rng, c)
			b.awake()
			b.acquire(0, 0)
			for range 40 {
				switch rng.IntN(12) {
				case 0:
					c.advance(rng.Int64N(2 * epoch))
				case 1:
				case 2, 3, 4, 5, 6:
					c.advance(b.lanes[2*rng.IntN(2)]*rng.Int64N(20) - 500*rng.Int64N(2)) // move the clock by 0 to 19 intervals of a partition, or by 0.5 ms less than that
				default:
					c.advance(rng.Int64N(60_000))
				}
				if rng.IntN(50) == 0 {
					b.acquireAfter(1, 1, fmt.Sprintf("backoff %d 1000000 %d", 1+rng.Int64N(second), c.us()))
					c.advance(12 * second)
				}
				calls++
				var fast bool
				switch rng.IntN(12) {
				case 0:
					fast = b.bothPaths(1+rng.IntN(12), 0)
				case 1:
					fast = b.bothPaths(0, 1+rng.IntN(18))
				case 2, 3, 4, 5, 6:
					fast = b.bothPaths(1+rng.IntN(3), 0)
				case 7, 8, 9, 10:
					fast = b.bothPaths(0, 1+rng.IntN(3))
				default:
					fast = b.bothPaths(rng.IntN(1+rng.IntN(201)), rng.IntN(1+rng.IntN(201)))
				}
				if fast {
					byFirst++
				}
			}
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
	t.Logf("the fast path decided %d of %d calls", byFirst, calls)
	if byFirst < calls/4 {
		t.Errorf("the fast path decided only %d of %d calls; the others were not compared", byFirst, calls)
	}
}

func TestFastPath_LeavesOtherCallsAlone(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.zone, b.more = time.UTC, day(10_000, 0)
		b.awake()
		b.acquire(0, 0)
		if !b.bothPaths(1, 0) || !b.bothPaths(0, 1) {
			t.Fatal("the full path decides all calls")
		}
		for name, change := range map[string]func(b *bucket){
			"another revision": func(b *bucket) { b.revision = 1 },
			"stopped":          func(b *bucket) { b.revision, b.stopped = 1, 1 },
			"another limit":    func(b *bucket) { b.more = day(5000, 0) },
			"no day":           func(b *bucket) { b.more, b.zone = "", nil },
			"a log":            func(b *bucket) { b.more = windowLog(second, 5, 3) + b.more },
			"a lane for low":   func(b *bucket) { b.lanes = []int64{10_000, 10, 3_334, 12, 20_000, 2} },
			"a failover":       func(b *bucket) { b.failOver() },
			"the clock was set back": func(b *bucket) {
				b.setNumber("last", c.us()+1)
			},
			"near midnight": func(b *bucket) {
				c.set(time.Date(2027, 1, 15, 23, 59, 49, 0, time.UTC))
				b.acquire(0, 0)
				c.advance(950_000) // some slots are now in the 10 s before midnight
			},
			"an epoch over": func(*bucket) { c.advance(epoch) },
		} {
			state, now, other := b.state(), c.now, b
			change(&other)
			if other.bothPaths(5, 0) || other.bothPaths(0, 5) {
				t.Errorf("%s: the fast path decides a call", name)
			}
			b.setState(state)
			c.set(now)
		}
	})
}

// The fast path decides calls of one lane only. It takes all slots from one partition, so it must not grant
// LOW's slots from HIGH's partition.
func TestFastPath_LeavesCallsOfNoneOrBothLanes(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, _ *clock) {
		b.awake()
		b.acquire(0, 0)
		for _, n := range [][2]int{{0, 0}, {2, 3}, {1, 1}} {
			if b.bothPaths(n[0], n[1]) {
				t.Errorf("HIGH %d, LOW %d: got a decision of the fast path, want the full path", n[0], n[1])
			}
		}
	})
}

func TestFastPath_LeavesHighsReserve(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, _ *clock) {
		b.zone, b.more = time.UTC, day(1000, 0.01) // 576 calls are kept for HIGH, because 16 hours of the day are left
		b.awake()
		b.acquire(0, 0)
		b.setNumber("used", 500)
		if b.bothPaths(0, 1) {
			t.Error("the fast path decides a call of LOW, but only HIGH's reserve is left")
		}
		if !b.bothPaths(1, 0) {
			t.Error("the full path decides a call of HIGH")
		}
	})
}

func TestFastPath_AgreesOnEveryRedis(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.zone, b.more = time.UTC, day(1_000_000, 1)
		b.awake()
		b.acquire(0, 0)
		// The clock runs on between the two calls, so only values that do not depend on the clock
		// are compared.
		before := b.state()
		first := b.acquire(3, 0)
		b.setState(before)
		second := b.acquireAfter(3, 0, forceFullPath)
		for _, g := range []grant{first, second} {
			if len(g.high) != 3 || g.backHigh != 0 || g.used != 3 {
				t.Errorf("got grant %+v", g)
			}
		}
	})
}

func TestBreaker_DisablesTheFastPath(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquire(1, 1)
		if !b.calm(c.us()) {
			t.Fatal("the full path decides all calls")
		}
		b.acquireAfter(0, 0, openEvent(5*second, 60*second, c.us()))
		for range 700 {
			if b.calm(c.us()) {
				t.Fatal("the fast path would decide this call")
			}
			c.advance(100_000)
			b.acquire(1, 1)
		}
		b.acquireAfter(0, 0, closeEvent(c.us()))
		c.advance(ramp)
		b.acquire(1, 1)
		if !b.calm(c.us()) {
			t.Error("after its end the full path decides all calls")
		}
		b.bothPaths(5, 0)
	})
}
