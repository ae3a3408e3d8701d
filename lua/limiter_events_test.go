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

// These tests check reads of the state, and two events that callers send: a refund of unused slots,
// and the report that Redis' clock was set forward.

// unspent returns the events that refund the slots.
func unspent(slots ...int64) string {
	var words []string
	for _, s := range slots {
		words = append(words, fmt.Sprintf("refund %d", s))
	}
	return strings.Join(words, " ")
}

func TestRefund_ReturnsExactlyOneSlot(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.zone = time.UTC
		b.more = windowLog(60*second, 10, 10) + windowLog(30*second, 20, 20) + day(1000, 0)
		b.awake()
		g := b.acquire(10, 0)
		if len(g.high) != 10 {
			t.Fatalf("got grant %+v", g)
		}
		tats := b.tats()
		for got := g.high[9]; ; { // wait until the last slot has passed; earlier, a refund leaves its slot in the log
			if now, err := rdb.Time(t.Context()).Result(); err != nil || now.UnixMicro() > got {
				break
			}
		}
		reply := b.acquireAfter(0, 0, unspent(g.high[3]))
		if now := b.tats(); !slices.Equal(now, tats) {
			t.Errorf("a refund moved the partitions from %v to %v", tats, now)
		}
		logs := b.windowLogs()
		if len(logs[0]) != 9 || len(logs[1]) != 9 || reply.used != 9 {
			t.Errorf("after a refund the logs have %d and %d slots, the day %d; want 9", len(logs[0]), len(logs[1]), reply.used)
		}
		b.acquireAfter(0, 0, unspent(g.high[3]-1, g.now-60*second))
		if again := b.windowLogs(); !slices.EqualFunc(logs, again, slices.Equal) {
			t.Errorf("refunds of slots that nobody had changed the logs from %v to %v", logs, again)
		}
		if g := b.acquire(5, 0); len(g.high) != 1 || g.refusalHigh != 2 {
			t.Errorf("with a slot returned HIGH got %+v", g)
		}
	})
}

func TestRefund_OfASharedSlotReturnsOneCall(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(60*second, 10, 10)
		b.awake()
		c.advance(second)
		g := b.acquire(10, 0) // all ten slots have the same time
		c.advance(second)
		b.acquireAfter(0, 0, unspent(g.high[0]))
		if g := b.acquire(9, 0); len(g.high) != 1 {
			t.Errorf("one refund returned %d slots", len(g.high))
		}
		b.acquireAfter(0, 0, unspent(g.high[1], g.high[2]))
		if g := b.acquire(9, 0); len(g.high) != 2 {
			t.Errorf("two refunds returned %d slots", len(g.high))
		}
	})
}

func TestRefund_NeverExceedsTheLogsLimit(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		simulated(t, func(b bucket, c *clock) {
			const reach, n = second, 8
			rng := rand.New(rand.NewPCG(seed, 71))
			b.lanes, b.more = nil, windowLog(reach, n, 6)
			b.awake()
			var spent []int64
			for range 120 {
				c.advance(rng.Int64N(200_000))
				var back []int64
				for _, s := range b.acquire(rng.IntN(6), rng.IntN(6)).all() {
					if rng.IntN(3) == 0 {
						back = append(back, s)
					} else {
						spent = append(spent, s)
					}
				}
				if len(back) > 0 { // refund these slots at once, or up to 0.3 s later, when the times of some slots may have passed
					if rng.IntN(2) == 0 {
						c.advance(rng.Int64N(2 * horizon))
					}
					b.acquireAfter(0, 0, unspent(back...))
				}
			}
			slices.Sort(spent)
			if got := mostInWindow(spent, reach-1); got > n {
				t.Fatalf("seed %d: %d calls in a reach, the log has %d", seed, got, n)
			}
		})
	}
}

func TestRefund_OfAFutureSlotIsGrantedAgain(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		const reach = second
		b.lanes, b.more = nil, windowLog(reach, 2, 2)
		b.awake()
		b.acquire(2, 0)
		c.advance(reach - 50_000)
		ahead := b.acquire(1, 0).high
		b.acquireAfter(0, 0, unspent(ahead...))
		if again := b.acquire(1, 0).high; len(ahead) != 1 || !slices.Equal(again, ahead) {
			t.Errorf("slot after the refund of slot %v: got %v, want the same", ahead, again)
		}
	})
}

func TestRefund_OfLostStateHasNoEffect(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.onDay(1000, 0)
		b.more = windowLog(5*second, 10, 10) + b.more
		b.awake()
		c.advance(second)
		old := b.acquire(10, 0)
		c.advance(1000)
		b.failOver()
		lost := b.acquireAfter(0, 0, unspent(old.high...)+" used 0 0 0 0")
		if logs := b.windowLogs(); len(logs[0]) != 10 || lost.used != 10 {
			t.Errorf("the log has %d slots, the day %d calls; want 10", len(logs[0]), lost.used)
		}
		b.acquireAfter(0, 0, unspent(old.high...))
		if logs := b.windowLogs(); len(logs[0]) != 10 || b.acquire(0, 0).used != 10 {
			t.Errorf("later the log has %d slots, the day %d calls; want 10", len(logs[0]), b.acquire(0, 0).used)
		}
	})
}

func TestWindowLog_LostBeginsUsedUp(t *testing.T) {
	t.Parallel()
	for _, lose := range []func(b bucket){
		bucket.forget, bucket.failOver,
		func(b bucket) { b.setState("garbled") },
	} {
		simulated(t, func(b bucket, c *clock) {
			const reach, n = 5 * second, 10
			b.lanes, b.more = nil, windowLog(reach, n, 6)
			b.awake()
			var all []int64
			for i := range 300 {
				if i == 120 {
					lose(b)
				}
				all = append(all, b.acquire(5, 5).all()...)
				c.advance(50_000)
			}
			if got := mostInWindow(all, reach-1); got > n {
				t.Errorf("%d slots in a reach of %d over the loss", got, n)
			}
			if got := within(all, c.us()-reach, c.us()); got < n {
				t.Errorf("%d slots in the last reach of %d", got, n)
			}
		})
	}
}

func TestClockStep_CausesOneQuietPeriod(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.awake()
		seen := b.acquire(1, 1).now
		b.acquireAfter(0, 0, fmt.Sprintf("step %d", seen))
		if g := b.acquire(5, 5); len(g.all()) > 0 || g.refusalHigh != refusedByStateLoss || g.backHigh < quiet-horizon-second {
			t.Errorf("after a step: %+v", g)
		}
	})
}

func TestClockStep_ReportedTwiceHasOneEffect(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		var seen []int64
		for range 5 { // five callers detect the clock step at different times, before any of them reports it
			seen = append(seen, b.acquire(1, 1).now)
			c.advance(20_000)
		}
		c.advance(5 * second)
		born := c.us()
		for i, at := range seen {
			b.acquireAfter(0, 0, fmt.Sprintf("step %d", at))
			if got := b.look()[1]; got != born {
				t.Fatalf("after %d callers the state was born %d us later", i+1, got-born)
			}
			c.advance(100_000)
		}
		c.set(time.UnixMicro(born + quiet - horizon - 1))
		if g := b.acquire(1, 1); len(g.all()) > 0 {
			t.Errorf("%d us after the first caller: %+v", c.us()-born, g)
		}
		c.advance(horizon + 2)
		if g := b.acquire(1, 1); len(g.all()) != 2 {
			t.Errorf("%d us after the first caller: %+v", c.us()-born, g)
		}
		b.acquireAfter(0, 0, fmt.Sprintf("step %d", seen[4])) // a caller reports the same step of the clock again, late
		if g := b.acquire(1, 1); len(g.all()) != 2 {
			t.Errorf("after a late report: %+v", g)
		}
	})
}

func TestRead_ReturnsTheDocumentedValues(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		b := newBucket(t, rdb)
		b.revision, b.zone = 7, time.UTC
		b.lanes = []int64{10_000, 10, 3_334, 12, 20_000, 2}
		b.more = partitions(60*second, []int64{0, 0, 6 * second, 9, 0, 0}) + windowLog(20*second, 6, 4) + windowLog(30*second, 8, 8) + day(50_000, 0.25)
		if shown := b.look(); len(shown) != 0 {
			t.Errorf("an unused source shows %v", shown)
		}
		b.awake()
		g := b.acquire(5, 0)
		state := b.state()
		shown := b.look()
		if b.state() != state {
			t.Errorf("a read changed the state from\n%q to\n%q", state, b.state())
		}
		if shown[0] < g.now || shown[0] > g.now+60*second || shown[1] > g.now-10*second {
			t.Errorf("now and birth are %v, the acquire was at %d", shown[:2], g.now)
		}
		end := endOfDay(time.UnixMicro(g.now), time.UTC).UnixMicro()
		want := []int64{
			7, 0, 0, 1000, 0,
			1, second, 5, 12, 2, // 5, 12 and 2 are the free slots of the partitions high, shared and low; high has granted 5 of its 10 slots
			1, 60 * second, 0, 4, 0,
			2, 20 * second, 6, 4, 5,
			2, 30 * second, 8, 8, 5,
			3, 50_000, 250_000, 5, end,
		}
		if len(shown) != 2+len(want) {
			t.Fatalf("got state %v", shown)
		}
		for i := range want {
			const high, shared = 7, 8 // indexes in `want` of the free slots of the partitions high and shared; these numbers grow while the clock runs
			if shown[2+i] < want[i] || (shown[2+i] > want[i] && i != high && i != shared) {
				t.Errorf("number %d is %d, want %d: %v", 2+i, shown[2+i], want[i], shown)
			}
		}
	})
}

func TestRead_ReturnsEachState(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.more, b.zone = day(5000, 0), time.UTC
		look := func(what string, want []int64) {
			t.Helper()
			state := b.state()
			shown := b.look()
			if b.state() != state {
				t.Errorf("%s: a read changed the state", what)
			}
			if !slices.Equal(shown[:7], want) {
				t.Errorf("%s: got state %v, want %v", what, shown[:7], want)
			}
		}
		b.acquire(0, 0)
		look("born and not counted", []int64{c.us(), c.us(), 0, 0, 0, 1000, 1})
		b.awake()
		birth := c.us() - 10*second
		b.acquire(25, 0)
		if got := b.look()[7:12]; !slices.Equal(got, []int64{1, second, 0, 0, 0}) {
			t.Errorf("the used partitions show %v", got)
		}
		c.advance(20_000)
		if got := b.look()[7:12]; !slices.Equal(got, []int64{1, second, 2, 6, 0}) {
			t.Errorf("20 ms later the partitions show %v", got)
		}
		b.backOff(c, 2*second, second)
		look("backoff", []int64{c.us(), birth, 0, 0, c.us() + 2*second, 500, 0})
		c.advance(7 * second)
		look("probe due", []int64{c.us(), birth, 0, 0, c.us() - 5*second, 500, 0})
		slot := b.acquire(1, 0).high[0]
		look("probe in flight", []int64{c.us(), birth, 0, 0, slot + 2*second, 500, 0})
		b.acquireAfter(0, 0, resumeEvent(slot))
		c.advance(5 * second)
		look("ramping", []int64{c.us(), birth, 0, 0, c.us() - 5*second, 750, 0})
		b.revision, b.stopped = 1, 1
		b.acquire(0, 0)
		look("stopped", []int64{c.us(), birth, 1, 1, c.us() - 5*second, 750, 0})
		b.setState("garbled")
		if shown := b.look(); len(shown) != 0 {
			t.Errorf("a malformed state shows %v", shown)
		}
	})
}

func TestRead_CountsSlotsWithinTheReach(t *testing.T) {
	t.Parallel()
	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(2*second, 6, 4)
		b.awake()
		b.acquire(3, 0)
		c.advance(second)
		b.acquire(2, 0)
		for _, want := range []int64{5, 2, 0} {
			if got := b.look()[7:]; !slices.Equal(got, []int64{2, 2 * second, 6, 4, want}) {
				t.Errorf("the log shows %v, want %d used", got, want)
			}
			c.advance(second)
		}
	})
}
