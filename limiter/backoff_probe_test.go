package limiter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// storm is an upstream that refuses every call from the time from until the time until.
type storm struct {
	from, until time.Time
	retryAfter  time.Duration // Retry-After of each refusal; 0 means that the refusals name no time
}

func (s *storm) answer(c atUpstream) answered {
	if !c.at.Before(s.from) && c.at.Before(s.until) {
		return answered{status: 429, refused: true, takes: 50 * ms}
	}
	return answered{status: 200, takes: 50 * ms}
}

// begin makes the upstream refuse every call, from now on and for the time `length`.
func (s *storm) begin(f *callers, length time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.from, s.until = time.Now(), time.Now().Add(length)
}

// call makes one call and reports its end, as a worker does. If the upstream refuses the call, it makes
// the call again.
func (s *storm) call(f *callers, m *member, lane schemas.Lane) {
	for {
		a, _ := f.one(m, lane, Call{Endpoint: "f/d"})
		if !a.refused {
			return
		}
		m.limiter.BackOff(s.retryAfter, time.Now().Add(-a.takes-5*ms))
	}
}

// arrive starts calls in all processes and both lanes, one every 125 ms, for the duration d.
func (s *storm) arrive(f *callers, d time.Duration) {
	for n := 0; d > 0; n++ {
		m, lane := f.members[n%len(f.members)], schemas.High
		if n%2 == 0 {
			lane = schemas.Low
		}
		m.wg.Go(func() { s.call(f, m, lane) })
		f.passed(125 * ms)
		d -= 125 * ms
	}
}

// A synctest bubble begins in the year 2000. The sliding-window logs need times in µs with 16 digits,
// and times have 16 digits only since 2001. So thirtyYears is added to the time of the bubble.
const thirtyYears = 30 * 365 * 24 * time.Hour

// tenPerSecond returns two quotas of 10 calls per second: one without buckets, one with a bucket.
func tenPerSecond() map[string]Config {
	return map[string]Config{
		"window":             {Jitter: 10 * ms, Policies: []Policy{{Name: "second", Limit: 10, Window: Window(time.Second)}}},
		"window with bucket": scopedConfig(Policy{Name: "second", Limit: 10, Window: Window(time.Second), Scope: "{endpoint}"}),
	}
}

func TestBackOff_FewCallsAreRefusedInALongStorm(t *testing.T) {
	const length = 30 * time.Second
	for name, config := range tenPerSecond() {
		for pause, retryAfter := range map[string]time.Duration{"no Retry-After": 0, "Retry-After 1s": time.Second, "Retry-After 100ms": 100 * ms} {
			t.Run(name+", "+pause, func(t *testing.T) {
				t.Parallel()
				s := &storm{retryAfter: retryAfter}
				inCallers(t, 1, 3, config, s.answer, func(f *callers) {
					f.far, f.ahead = 0, thirtyYears
					s.arrive(f, 20*time.Second)
					s.begin(f, length)
					s.arrive(f, length)
					if _, refused := f.since(s.from); refused > 8 {
						t.Errorf("%d calls were refused in %v, want at most 8", refused, length)
					}
					s.arrive(f, 40*time.Second)
					if all, _ := f.since(time.Now().Add(-10 * time.Second)); len(all) < 90 {
						t.Errorf("%d calls in the last 10 s, want at least 90", len(all))
					}
				})
			})
		}
	}
}

// When the upstream refuses the first call of a burst, the other calls of the burst are in flight and
// are refused too. Afterwards only probes may be sent.
func TestBackOff_ASaturatedSourceSendsOnlyProbes(t *testing.T) {
	for name, config := range tenPerSecond() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &storm{retryAfter: time.Second}
			inCallers(t, 1, 3, config, s.answer, func(f *callers) {
				f.far, f.ahead = 0, thirtyYears
				for _, m := range f.members {
					for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
						for range 20 {
							m.wg.Go(func() {
								for m.ctx.Err() == nil {
									s.call(f, m, lane)
								}
							})
						}
					}
				}
				f.passed(20 * time.Second)
				s.begin(f, 30*time.Second)
				f.passed(31 * time.Second)
				all, _ := f.since(s.from)
				burst := 0
				for _, c := range all {
					if c.at.Sub(all[0].at) < time.Second {
						burst++
					}
				}
				if burst > 10 {
					t.Errorf("%d calls within a second, the limit is 10", burst)
				}
				if _, refused := f.since(s.from); refused-burst > 5 {
					t.Errorf("%d calls were refused after the first burst, want at most 5", refused-burst)
				}
			})
		})
	}
}

func TestBackOff_ReplacesTheProbeOfACrashedProcess(t *testing.T) {
	for name, config := range tenPerSecond() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &storm{}
			inCallers(t, 1, 2, config, s.answer, func(f *callers) {
				f.ahead = thirtyYears
				crashing, other := f.members[0], f.members[1]
				f.one(other, schemas.High, Call{Endpoint: "f/d"})
				crashing.limiter.BackOff(time.Second, time.Now())
				p, err := crashing.limiter.Acquire(crashing.ctx, schemas.Low, Call{Endpoint: "f/d"})
				if err != nil || !p.IsSourceProbe() || !p.Spend() {
					t.Fatalf("got permit %+v (%v), want the probe", p, err)
				}
				crashing.stop()
				crashed := time.Now()
				f.one(other, schemas.High, Call{Endpoint: "f/d"})
				if waited := time.Since(crashed); waited > 4*time.Second {
					t.Errorf("the next probe came %v later, want at most 4s", waited)
				}
			})
		})
	}
}

func TestBackOff_AnyAnswerButARefusalEndsIt(t *testing.T) {
	for name, config := range tenPerSecond() {
		for status, ends := range map[int]bool{200: true, 400: true, 500: true, 429: false, 0: false} {
			t.Run(fmt.Sprint(name, ", status ", status), func(t *testing.T) {
				t.Parallel()
				inCallers(t, 1, 1, config, func(atUpstream) answered { return answered{status: status} }, func(f *callers) {
					f.ahead = thirtyYears
					m := f.members[0]
					f.one(m, schemas.High, Call{Endpoint: "f/d"})
					m.limiter.BackOff(time.Second, time.Now())
					f.one(m, schemas.High, Call{Endpoint: "f/d"})
					begun := time.Now()
					f.one(m, schemas.High, Call{Endpoint: "f/d"})
					if got := time.Since(begun) < time.Second; got != ends {
						t.Errorf("the next call waited %v; want it at once: %v", time.Since(begun), ends)
					}
				})
			})
		}
	}
}

func TestBackOff_CallsRedisSeldom(t *testing.T) {
	for name, config := range tenPerSecond() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &storm{retryAfter: time.Second}
			inCallers(t, 1, 3, config, s.answer, func(f *callers) {
				f.far, f.ahead = 0, thirtyYears
				calls := 0
				f.mu.Lock()
				run := f.run
				f.run = func(ctx context.Context, d demand) (grant, error) {
					calls++
					return run(ctx, d)
				}
				f.mu.Unlock()
				s.arrive(f, 20*time.Second)
				s.begin(f, time.Minute)
				before := read(f, &calls)
				s.arrive(f, time.Minute)
				if got := read(f, &calls) - before; got > 90 {
					t.Errorf("%d calls to Redis of 3 processes in a storm of a minute, want at most 90", got)
				}
			})
		})
	}
}
