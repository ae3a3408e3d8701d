package limiter

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

// readings reads a clock n times over a network with latencies up to `most`. The clock drifts by ppm
// (parts per million), and is set forward by step(i) before reading i. After each reading it calls
// `seen`. The parameter ahead of `seen` is the step that clock.read has detected.
func readings(rng *rand.Rand, ppm float64, most time.Duration, n int, step func(i int) time.Duration, seen func(i int, ahead, roundtrips, since time.Duration)) {
	var c clock
	local := time.Now()
	shift := time.Duration(0)
	redis := func(t time.Time) int64 {
		passed := t.Sub(local)
		return 1_800_000_000_000_000 + (passed + time.Duration(float64(passed)*ppm/1e6) + shift).Microseconds()
	}
	now, roundtrip, at := local, time.Duration(0), local
	for i := range n {
		now = now.Add(time.Duration(rng.Int64N(int64([]time.Duration{5 * ms, 300 * ms, 20 * time.Second}[rng.IntN(3)]))))
		by := step(i)
		shift += by
		there, back := time.Duration(rng.Int64N(int64(most))), time.Duration(rng.Int64N(int64(most)))
		before := c
		ahead := c.read(now, now.Add(there+back), redis(now.Add(there)), 0)
		if i > 0 {
			roundtrip, at = there+back+before.then.Sub(before.before), before.before
		}
		seen(i, ahead, roundtrip, now.Add(there+back).Sub(at))
		if got, want := c.at(now.Add(there+back)), redis(now.Add(there+back)); by >= 0 && got > want+clockLife.Microseconds()/clockDrift+clockSlack.Microseconds() {
			panic(fmt.Sprintf("at is %d us ahead of the clock", got-want))
		}
		now = now.Add(there + back)
	}
}

func TestClock_IgnoresOrdinaryDrift(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ppm, most := 400*rng.Float64()-200, time.Duration(1+rng.Int64N(int64(150*ms)))
		never := func(int) time.Duration { return 0 }
		readings(rng, ppm, most, 500, never, func(i int, ahead, _, _ time.Duration) {
			if ahead != 0 {
				t.Fatalf("seed %d: got a step of %v at reading %d, want none", seed, ahead, i)
			}
		})
	}
}

func TestClock_DetectsAStepForward(t *testing.T) {
	steps := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		ppm, most := 400*rng.Float64()-200, time.Duration(1+rng.Int64N(int64(20*ms)))
		by, unseen := time.Duration(0), time.Duration(0)
		step := func(i int) time.Duration {
			by = 0
			if i > 0 && rng.IntN(10) == 0 {
				by = time.Duration(rng.Int64N(int64(2 * time.Second)))
			}
			unseen += by
			return by
		}
		readings(rng, ppm, most, 300, step, func(i int, ahead, roundtrips, since time.Duration) {
			// A step is detected only if it is longer than the round trips, the slack and the
			// possible drift of the clocks together.
			hidden := roundtrips + clockSlack + since/clockDrift + time.Duration(float64(since)*200/1e6) + time.Microsecond
			switch {
			case by > hidden && ahead <= 0:
				t.Fatalf("seed %d: step of %v was not detected with round trips of %v", seed, by, roundtrips)
			case ahead > unseen:
				t.Fatalf("seed %d: steps of %v: got %v", seed, unseen, ahead)
			case by > hidden:
				steps++
			}
			if ahead > 0 {
				unseen = 0
			}
		})
	}
	if steps < 1000 {
		t.Errorf("got only %d detectable steps", steps)
	}
}

func TestClock_DetectsAStepForwardAfterOneBack(t *testing.T) {
	var c clock
	start := time.Now()
	read := func(after, roundtrip time.Duration, redis int64) time.Duration {
		return c.read(start.Add(after), start.Add(after+roundtrip), redis, 0)
	}
	read(0, ms, 10_000_000)
	if ahead := read(5*time.Second, 20*ms, 12_000_000); ahead != 0 { // Redis' clock is set back by 3 s
		t.Errorf("after a step back: got a forward step of %v", ahead)
	}
	if ahead := read(5100*ms, 20*ms, 15_100_000); ahead < 2900*ms { // Redis' clock is set forward by 3 s
		t.Errorf("step of 3 s: got %v", ahead)
	}
}

func TestClock_DetectsAStepForwardSinceALossOfState(t *testing.T) {
	start, second := time.Now(), int64(1_000_000)
	read := func(c *clock, after time.Duration, redis, birth int64) time.Duration {
		return c.read(start.Add(after), start.Add(after+20*ms), redis, birth)
	}
	for name, test := range map[string]struct {
		redis, birth int64
		want         time.Duration
	}{
		"set back by 12 s, lost after 1 s, set forward by 7 s": {97 * second, 89 * second, 5900 * ms},
		"set back by 12 s, lost after 1 s":                     {90 * second, 89 * second, 0},
		"set back by 12 s, lost at once":                       {90 * second, 88 * second, 0},
		"a source that was never called":                       {102 * second, 1, 0},
		"the same state":                                       {97 * second, 10 * second, 0},
	} {
		var c clock
		read(&c, 0, 100*second, 10*second)
		if got := read(&c, 2*time.Second, test.redis, test.birth); got < test.want || got > test.want+100*ms {
			t.Errorf("%s: got a step of %v, want %v", name, got, test.want)
		}
		if got := read(&c, 3*time.Second, test.redis+second, test.birth); got != 0 {
			t.Errorf("%s: got a step of %v at the next reading, want none", name, got)
		}
	}
}

func TestClock_ScopedPoliciesStayQuietAfterAHiddenStep(t *testing.T) {
	config := scopedConfig(Policy{Name: "log", Limit: 5, Window: Window(5 * time.Second), Scope: "{credential}"})
	healthy := func(atUpstream) answered { return answered{status: 200} }
	inCallers(t, 1, 2, config, healthy, func(f *callers) {
		call := Call{Endpoint: "f/d", Key: "k"}
		set := func(ahead time.Duration) {
			f.mu.Lock()
			f.ahead = ahead
			f.mu.Unlock()
		}
		f.one(f.members[0], schemas.High, call)
		set(-12 * time.Second)
		f.wait(f.members[1], 1, schemas.High, call) // this process finds that the state is lost
		elapse(time.Second)
		set(-5 * time.Second)
		from := time.Now()
		f.one(f.members[0], schemas.High, call)
		if got, want := time.Since(from), 5*time.Second; got < want {
			t.Errorf("got a call %v after the step, want it after a quiet period of at least %v", got, want)
		}
	})
}

func TestClock_StepDropsTheGrant(t *testing.T) {
	r := &redisDouble{}
	set := int64(0)
	r.answer = func(_ int, d demand) (grant, error) {
		return grant{high: make([]time.Duration, d.high), low: make([]time.Duration, d.low), now: r.now() + set}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		mustAcquire(t, l, schemas.Low)
		seen := r.now()
		elapse(time.Second)
		set = 300_000
		asked := len(r.demands)
		mustAcquire(t, l, schemas.Low)
		if n := len(r.demands) - asked; n != 2 || r.demands[asked].low != 1 || r.demands[asked+1].low != 1 {
			t.Errorf("a grant from before the step was used: %+v", r.demands[asked:])
		}
		elapse(time.Minute)
		mustAcquire(t, l, schemas.Low)
		// The limiter sends an event that Redis' clock was set forward. The event contains the time at
		// which the limiter detected the step, so that the script can ignore the event if the script's
		// state was created later.
		events := r.sentEvents()
		_, step, _ := strings.Cut(events, "step ")
		var shown int64
		_, err := fmt.Sscanf(step, "%d;", &shown)
		if without := shown - seen - 1_300_000; err != nil || strings.Count(events, "step") != 1 || without < 0 || without > 10_000 {
			t.Errorf("got events %q; Redis' clock was %d a second before", events, seen)
		}
	})
}

func zones(t *testing.T) (all []Quota) {
	t.Helper()
	for _, name := range []string{"Asia/Seoul", "UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland"} {
		c := withDay()
		c.Policies[1].TimeZone = name
		q, err := NewQuota(c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, q)
	}
	return all
}

// instants calls `see` with random times of two years. Most of these times are near full hours,
// midnights and daylight saving changes of all zones.
func instants(seed uint64, see func(now time.Time)) {
	rng := rand.New(rand.NewPCG(seed, 3))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 5_000 {
		now := start.Add(time.Duration(rng.IntN(2*365*48)) * 30 * time.Minute)
		see(now.Add(time.Duration(rng.Int64N(int64(90*time.Second))) - 45*time.Second))
	}
}

func TestMidnights_ContainTheCountedDay(t *testing.T) {
	for _, q := range zones(t) {
		instants(1, func(redis time.Time) {
			counted := redis.Add(-dayMargin).In(q.zone)
			begin := time.Date(counted.Year(), counted.Month(), counted.Day(), 0, 0, 0, 0, q.zone)
			end := time.Date(counted.Year(), counted.Month(), counted.Day()+1, 0, 0, 0, 0, q.zone)
			if !q.dayEnd(redis).Equal(end) {
				t.Fatalf("%v: at %v the day ends at %v, not %v", q.zone, redis, q.dayEnd(redis), end)
			}
			for _, apart := range []time.Duration{0, 30 * time.Second, -30 * time.Second, 10 * time.Hour, -10 * time.Hour} {
				var m []int64
				if err := json.Unmarshal([]byte(q.midnights(redis.Add(apart))), &m); err != nil || len(m) != 3 || m[0] >= m[1] || m[1] >= m[2] {
					t.Fatalf("%v: midnights %v, %v", q.zone, m, err)
				}
				// Find the end of the day among the three midnights as the script does.
				i := 1
				for i < 3 && redis.UnixMicro() >= m[i]+dayMargin.Microseconds() {
					i++
				}
				if i == 3 || m[i] != end.UnixMicro() || m[i-1] != begin.UnixMicro() {
					t.Fatalf("%v: at %v, with a clock %v apart, midnights %v; the day is %v to %v", q.zone, redis, apart, m, begin, end)
				}
			}
		})
	}
	none, err := NewQuota(second(500, 450, 100, 0))
	if err != nil || none.midnights(time.Now()) != "" {
		t.Errorf("got midnights of a quota without a day, or the error %v", err)
	}
}

func TestBackOff_SendsRedisTime(t *testing.T) {
	r := &redisDouble{latency: 4 * ms}
	r.answer = func(_ int, d demand) (grant, error) {
		// Redis reads its clock in the middle of the call, which takes 4 ms.
		return grant{high: make([]time.Duration, d.high), now: r.now() - 2000}, nil
	}
	config := second(500, 450, 100, 0)
	config.Backoff = 7 * time.Second
	simulatedWith(t, r, config, Deps{}, func(t *testing.T, l *Limiter) {
		mustAcquire(t, l, schemas.High)
		elapse(30 * ms)
		sent := time.Now()
		want := r.now() - 2000 // the limiter's estimate of Redis' clock: 2 ms (half a round trip) behind
		elapse(time.Second)
		l.BackOff(1500*ms, sent)
		synctest.Wait()
		l.BackOff(0, sent)
		elapse(time.Second)
		events := r.sentEvents()
		for _, event := range []string{fmt.Sprintf("backoff 1500000 7000000 %d;", want), fmt.Sprintf("backoff 0 7000000 %d;", want)} {
			if strings.Count(events, event) != 1 {
				t.Errorf("got events %q, want %q", events, event)
			}
		}
	})
}
