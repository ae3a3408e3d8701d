package limiter

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"regexp"
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
			// The response is reported at once and not after takes(). Otherwise a response could be
			// reported after the response of a later call, and the limiter ignores such a response.
			l.jitter.answered(*p.written.Load(), takes())
		}
		sleep(100 * ms)
	}
}

func TestJitter_AboveConfiguredWarnsOnce(t *testing.T) {
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
		"late writes":     func(l *Limiter) { traffic(l, 122*time.Second, 450, writes, steady) },
		"changing delays": func(l *Limiter) { moving(122*time.Second, l) },
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			warnings := func() int { return strings.Count(log.String(), "level=WARN") }
			r := &redisDouble{answer: grantAll}
			simulatedWith(t, r, second(500, 450, 100, 0), Deps{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, l *Limiter) {
				// A slow upstream with a constant minimum delay causes no jitter.
				traffic(l, 62*time.Second, 450, none, steady)
				if n := warnings(); n != 0 {
					t.Errorf("after a slow upstream: got %d warnings, want 0: %s", n, log.String())
				}
				disturb(l)
				if n := warnings(); n != 1 {
					t.Errorf("after two minutes of jitter: got %d warnings, want 1: %s", n, log.String())
				}
				want := regexp.MustCompile(`msg="measured jitter exceeds quota.jitter; raise quota.jitter, or find .*" source=nexon event=jitter_exceeded err="the measured jitter is [5-9]\d[.\d]*ms, the configured jitter is 10ms"`)
				if !want.MatchString(log.String()) {
					t.Errorf("got the log %s, want a match of %s", log.String(), want)
				}
				traffic(l, 122*time.Second, 450, none, steady)
				if n := strings.Count(log.String(), "measured jitter no longer exceeds quota.jitter"); n != 1 || warnings() != 1 {
					t.Errorf("after the jitter ended: got %d warnings and %d recoveries, want 1 and 1: %s", warnings(), n, log.String())
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
		if measured, known := l.jitter.measure(); known {
			t.Errorf("got a jitter of %v, want none", measured)
		}
	})
}
