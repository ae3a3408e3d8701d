package limiter

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// traffic simulates a process that makes `perSecond` calls per second for the duration d. The
// function `late` returns the delay from a permit until its request is written. The function
// `takes` returns the time from the write until the response.
func traffic(l *Limiter, d time.Duration, perSecond int, late, takes func() time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range perSecond / 10 {
			p := &Permit{limiter: l, spent: time.Now().Add(-late())}
			p.Written()
			// The response is reported at once, not after takes(). If it came after responses of
			// later calls, the limiter would ignore it.
			l.jitter.answered(*p.written.Load(), takes())
		}
		sleep(100 * ms)
	}
}

func TestJitter_AboveConfiguredLowersTheRate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	none := func() time.Duration { return 0 }
	steady := func() time.Duration { return 200*ms + time.Duration(rng.ExpFloat64()*float64(20*ms)) }
	floor := time.Duration(0)
	path := func() time.Duration { return floor + 30*ms + time.Duration(rng.Int64N(int64(5*ms))) }
	writes := func() time.Duration { return time.Duration(rng.Int64N(int64(60 * ms))) }
	moving := func(d time.Duration, l *Limiter) { // the network delay alternates between 0 and 80 ms
		for range d / (400 * ms) {
			floor = 0
			traffic(l, 200*ms, 450, none, path)
			floor = 80 * ms
			traffic(l, 200*ms, 450, none, path)
		}
	}
	for name, disturb := range map[string]func(l *Limiter){
		"late writes":  func(l *Limiter) { traffic(l, 62*time.Second, 450, writes, steady) },
		"a moving way": func(l *Limiter) { moving(62*time.Second, l) },
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			r, s := &redisDouble{answer: grantAll}, &settingsDouble{}
			simulatedWith(t, r, second(500, 450, 100, 0), Deps{Settings: s, Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *Limiter) {
				quota := func() Quota {
					l.mu.Lock()
					defer l.mu.Unlock()
					return l.quota
				}
				reference := quota().Bounds()[0]
				// A slow upstream with a constant minimum delay causes no jitter.
				traffic(l, 62*time.Second, 450, none, steady)
				if b := quota().Bounds()[0]; b != reference || strings.Contains(log.String(), "jitter exceeds") {
					t.Errorf("after a slow upstream: got %+v: %s", b, log.String())
				}
				disturb(l)
				q := quota()
				if b := q.Bounds()[0]; q.config.Jitter < 50*ms || q.config.Jitter > 100*ms || b.Max > 500 || b.PerWindow > reference.PerWindow-10 || b.PerWindow < 380 {
					t.Errorf("after a jitter of 60 to 80 ms: got %v, %+v", q.config.Jitter, b)
				}
				if n := strings.Count(log.String(), "jitter exceeds the configured value"); n < 1 || n > 3 {
					t.Errorf("logged %d times: %s", n, log.String())
				}
				// New settings are also lowered to fit the measured jitter. Invalid settings
				// change nothing.
				s.set(target(440))
				sleep(2 * time.Second)
				s.set(target(500))
				sleep(2 * time.Second)
				if b, with := quota().Bounds()[0], quota().config; b.Max > 500 || with.Jitter < 50*ms || b.PerWindow > 440 {
					t.Errorf("after a change: got %v, %+v", with.Jitter, b)
				}
				traffic(l, 122*time.Second, 450, none, steady)
				if q := quota(); q.config.Jitter != 10*ms || q.config.Policies[0].Target != 440 || strings.Count(log.String(), "jitter is back within") != 1 {
					t.Errorf("after the jitter ended: got %+v: %s", q.config, log.String())
				}
			})
		})
	}
}

func TestJitter_NeedsEnoughCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	wide := func() time.Duration { return time.Duration(rng.Int64N(int64(time.Second))) }
	r := &redisDouble{answer: grantAll}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		traffic(l, 5*time.Minute, 70, wide, wide)
		if jitter := l.quota.config.Jitter; jitter != 10*ms {
			t.Errorf("got a quota for a jitter of %v", jitter)
		}
		if measured, known := l.jitter.measure(); known {
			t.Errorf("got a jitter of %v, want none", measured)
		}
	})
}

func TestJitter_AnyQuotaFitsAnyJitter(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	fitted, freed := 0, 0
	for range 20_000 {
		limit := 1 + rng.IntN(2000)
		config := second(limit, rng.IntN(limit+1), rng.IntN(limit), rng.IntN(1+limit/4))
		config.Policies[0].Window = Window(time.Duration(1+rng.IntN(600)) * 100 * ms)
		config.Jitter = time.Duration(rng.IntN(100)) * ms
		before, err := NewQuota(config)
		if err != nil {
			continue
		}
		jitter := time.Duration(rng.IntN(1001)) * ms
		fit := config.fitting(jitter)
		after, err := NewQuota(fit)
		if err != nil {
			t.Fatalf("%+v for %v: %v", config, jitter, err)
		}
		fitted++
		if fit.Policies[0].Target == 0 && config.Policies[0].Target > 0 {
			freed++
		}
		b, a := before.Bounds()[0], after.Bounds()[0]
		if a.Max > limit || a.PerWindow > b.PerWindow*1.001 || (fit.Jitter < jitter && fit.Jitter != config.Jitter) {
			t.Fatalf("%+v for %v: %+v became %+v", config, jitter, b, a)
		}
	}
	if fitted < 1000 || freed == 0 {
		t.Errorf("%d quotas, %d without a target", fitted, freed)
	}
}
