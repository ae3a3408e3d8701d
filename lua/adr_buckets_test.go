package lua_test

// These tests show faults of the two token buckets of adr-013. Each test compares our script with
// a script by the ADR's rules, written for these tests (in testdata). adr_cluster_test.go shows
// another fault: the ADR's script uses undeclared keys.

import (
	_ "embed"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/servicetest"
)

//go:embed testdata/adr_buckets.lua
var adrBuckets string

// buckets are the ADR's two token buckets of one source.
type buckets struct {
	t      *testing.T
	rdb    redis.UniversalClient
	script string
	tag    string
	// The common bucket has `size` calls and refills at `rate` calls a second. LOW's bucket has
	// lowSize calls and refills at lowRate calls a second.
	size, lowSize int
	rate, lowRate float64
}

func newBuckets(t *testing.T, rdb redis.UniversalClient) buckets {
	return buckets{t, rdb, adrBuckets, "{" + servicetest.Name("adr") + "}", 450, 350, 450, 350}
}

// admits requests one call. The caller's clock shows `at`, and the ADR's script uses that clock.
func (a buckets) admits(at time.Duration, high bool) bool {
	a.t.Helper()
	ok, err := a.rdb.Eval(a.t.Context(), a.script, []string{a.tag + ":all", a.tag + ":low"},
		a.size, a.lowSize, a.rate, a.lowRate, (1_800_000*time.Second + at).Milliseconds(), boolArg(high)).Int()
	if err != nil {
		a.t.Fatal(err)
	}
	return ok == 1
}

// drain requests HIGH calls until a call is rejected or `most` calls are admitted.
func (a buckets) drain(at time.Duration, most int) (admitted int) {
	a.t.Helper()
	for admitted < most && a.admits(at, true) {
		admitted++
	}
	return admitted
}

const gone = "the flaw is gone, and with it the reason for ours"

func TestADRBuckets_AdmitTwiceTheLimitAfterAPause(t *testing.T) {
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)
	a := newBuckets(t, rdb)
	var admitted []int64
	for at := time.Duration(0); at < time.Second; at += 500 * time.Microsecond {
		if a.admits(at, true) {
			admitted = append(admitted, at.Microseconds())
		}
	}
	if got := mostInWindow(admitted, second); got <= 500 {
		t.Errorf("ADR: %d in a second: %s", got, gone)
	}
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		var ours []int64
		for range 20 {
			g := b.acquire(600, 0)
			ours = append(ours, g.high...)
			c.advance(50_000)
		}
		if got := mostInWindow(ours, second); got > 474 {
			t.Errorf("ours: %d in a second", got)
		}
	})
}

// adrWithoutNegativeRefill returns the ADR's script with the usual guard: a caller whose clock is
// behind refills nothing. In the ADR's own script such a caller removes tokens from the bucket.
func adrWithoutNegativeRefill(t *testing.T) string {
	t.Helper()
	const past = "(now - tonumber(at or now)) / 1000"
	if !strings.Contains(adrBuckets, past) {
		t.Fatal("the script no longer has", past)
	}
	return strings.Replace(adrBuckets, past, "math.max(0, now - tonumber(at or now)) / 1000", 1)
}

func TestADRBuckets_TrustTheCallersClock(t *testing.T) {
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)

	ahead := newBuckets(t, rdb)
	ahead.admits(10*time.Second, true) // one call of a caller whose clock is 10 s ahead
	admitted := 0
	for ms := range 500 {
		if ahead.admits(time.Duration(ms)*time.Millisecond, true) {
			admitted++
		}
	}
	if admitted > 0 {
		t.Errorf("ADR: the others got %d calls: %s", admitted, gone)
	}

	again := newBuckets(t, rdb)
	burst := again.drain(0, 1000)
	if burst += again.drain(time.Second, 1000); burst < 900 { // at the same instant, a caller whose clock is 1 s ahead drains the bucket again
		t.Errorf("ADR: %d in an instant: %s", burst, gone)
	}

	alternating := newBuckets(t, rdb)
	alternating.script = adrWithoutNegativeRefill(t)
	admitted = 0
	for i := range 1200 { // two callers, whose clocks differ by 10 ms, request calls in turn
		if alternating.admits(time.Duration(i%2)*10*time.Millisecond, true) {
			admitted++
		}
	}
	if admitted < 1200 {
		t.Errorf("ADR: two clocks 10 ms apart got %d of 1200 at once: %s", admitted, gone)
	}

	// With our script the limit holds, even if the callers' clocks differ.
	simulated(t, func(b bucket, c *clock) {
		b.awake()
		right := b.clock
		var slots []int64
		for i := range 200 {
			off := []time.Duration{0, 10 * time.Millisecond, 10 * time.Second, -10 * time.Second}[i%4]
			b.clock = func() time.Time { return right().Add(off) }
			slots = append(slots, b.acquire(100, 0).high...)
			c.advance(10_000)
		}
		slices.Sort(slots)
		if got := mostInWindow(slots, second); got > 474 {
			t.Errorf("ours: %d in a second", got)
		}
		if got := within(slots, c.us()-second, c.us()); got < 445 {
			t.Errorf("ours: %d in the last second", got)
		}
	})
}

func TestADRBuckets_LowUsesItsBurstWhileHighStarves(t *testing.T) {
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)
	a := newBuckets(t, rdb)
	a.drain(0, 450) // HIGH uses up the common bucket
	served := make([]int, 2)
	for ms := range 2000 {
		at := time.Duration(ms) * time.Millisecond
		for range 3 { // LOW, whose own bucket is still full, requests 3 calls per ms
			a.admits(at, false)
		}
		if ms%5 == 0 && a.admits(at, true) { // HIGH requests 200 calls a second
			served[ms/1000]++
		}
	}
	if most := slices.Max(served); most > 50 {
		t.Errorf("ADR: HIGH got %v a second: %s", served, gone)
	}
	// With our script, HIGH keeps its share while LOW requests more calls than the limit allows:
	// see TestAcquire_KeepsHighsShareUnderLowLoad.
}

func TestADRBuckets_RejectWithoutARetryTime(t *testing.T) {
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)
	a := newBuckets(t, rdb)
	a.drain(0, 1000)
	calls, admitted := 0, 0
	for at := 10 * time.Millisecond; at <= 300*time.Millisecond; at += 10 * time.Millisecond {
		for range 64 { // 64 waiters; each retries 10 ms after a rejection
			calls++
			if a.admits(at, false) {
				admitted++
			}
		}
	}
	if perPermit := float64(calls) / float64(admitted); perPermit < 6 {
		t.Errorf("ADR: %.1f calls an admission: %s", perPermit, gone)
	}

	simulated(t, func(b bucket, c *clock) {
		b.awake()
		b.acquire(100, 100)
		processes := make([]process, 64)
		for i := range processes {
			processes[i] = process{low: 1, at: c.us()}
		}
		_, low, calls := play(b, c, 3*second, false, processes)
		// Each process has one waiter. It needs at most two calls: one that is rejected, and one at
		// the retry time that the script has returned.
		if len(low) != 64 || calls > 2*64 {
			t.Errorf("ours: %d of 64 waiters served in %d calls", len(low), calls)
		}
		if last := slices.Max(low) - low[0]; last > 64*2_858+horizon {
			t.Errorf("ours: the last of 64 waited %d us longer than the first", last)
		}
	})
}

func TestADRBuckets_ForgetWindowsLongerThanTheirTTL(t *testing.T) {
	t.Parallel()
	rdb, m := servicetest.MiniRedis(t)
	a := newBuckets(t, rdb)
	a.size, a.rate = 40, 40./60 // a limit of 40 calls per minute
	admitted := 0
	for at := time.Duration(0); at < time.Minute; at += 2100 * time.Millisecond {
		admitted += a.drain(at, 1000)
		m.FastForward(2100 * time.Millisecond)
	}
	if admitted < 1000 {
		t.Errorf("ADR: %d in a minute of 40: %s", admitted, gone)
	}

	simulated(t, func(b bucket, c *clock) {
		b.lanes, b.more = nil, windowLog(60*second, 40, 30)
		b.awake()
		ours := 0
		for range 28 {
			ours += len(b.acquire(100, 100).all())
			c.m.FastForward(2100 * time.Millisecond)
			c.advance(2_100_000)
		}
		if ours != 40 {
			t.Errorf("ours: %d in a minute of 40", ours)
		}
	})
}

func TestADRBuckets_HaveNoDay(t *testing.T) {
	t.Parallel()
	rdb, _ := servicetest.MiniRedis(t)
	a := newBuckets(t, rdb)
	admitted := 0
	for at := time.Duration(0); at < 24*time.Hour; at += 4 * time.Hour { // every four hours, callers request calls for one second
		for ms := time.Duration(0); ms < time.Second; ms += 100 * time.Millisecond {
			admitted += a.drain(at+ms, 46)
		}
	}
	if perDay := admitted * 4 * 3600; perDay < 30_000_000 {
		t.Errorf("ADR: at this rate %d a day: %s", perDay, gone)
	}

	simulated(t, func(b bucket, c *clock) {
		b.more, b.zone = day(20_000_000, 0), time.UTC
		b.awake()
		b.setNumber("used", 20_000_000-300)
		ours := 0
		for range 100 {
			ours += len(b.acquire(46, 46).all())
			c.advance(100_000)
		}
		if ours != 300 {
			t.Errorf("ours: %d of the 300 calls that the day had left", ours)
		}
	})
}
