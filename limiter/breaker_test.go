package limiter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func TestBreaker_ReleasesSlotsAndTellsRedis(t *testing.T) {
	r := &redisDouble{}
	r.answer = func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{now: r.now(), low: []time.Duration{50 * ms}}, nil
		}
		if time.Since(r.start) < 5*time.Second {
			return grant{now: r.now(), backLow: 500 * ms, refusalHigh: refusedByBreaker, refusalLow: refusedByBreaker}, nil
		}
		return grant{now: r.now(), low: []time.Duration{0}, backLow: 500 * ms, refusalLow: refusedByBreaker}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		got := make(chan *Permit)
		go func() { got <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait() // now the caller waits until its slot is due, in 50 ms
		sent := r.now() - 1000
		l.OpenBreaker(5*time.Second, time.Minute, time.Now().Add(-ms))
		p := <-got
		if at := time.Since(r.start); at < 5*time.Second || at > 5500*ms || !p.Spend() {
			t.Errorf("got a permit at %v while the breaker was open", at)
		}
		if events, want := r.sentEvents(), fmt.Sprintf("open 5000000 60000000 %d;", sent); !strings.Contains(events, want) {
			t.Errorf("got events %q, want %q", events, want)
		}
		if n := testutil.ToFloat64(l.metrics.breakerOpen); n != 1 {
			t.Errorf("gauge: got %v", n)
		}
	})
}

func TestBreaker_ReportsSuccessOnlyWhileOpen(t *testing.T) {
	stopped, slots := false, 1
	r := &redisDouble{}
	r.answer = func(_ int, d demand) (grant, error) {
		g := grant{now: r.now()}
		if slices.ContainsFunc(d.events, func(e event) bool { return e.kind == eventClose }) {
			stopped = false
		}
		if !stopped {
			g.low = make([]time.Duration, d.low)
			return g, nil
		}
		g.refusalLow, g.backLow = refusedByBreaker, 400*ms
		if d.low > 0 && slots > 0 {
			slots--
			g.low = []time.Duration{0}
		}
		return g, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		mustAcquire(t, l, schemas.Low)
		for range 100 {
			l.CloseBreaker(time.Now())
		}
		elapse(time.Second)
		if len(r.demands) != 1 {
			t.Errorf("got %d calls to Redis for successes, want none", len(r.demands))
		}
		stopped = true // from now on Redis replies that another process has opened the breaker
		mustAcquire(t, l, schemas.Low)
		waiter := make(chan *Permit)
		go func() { waiter <- mustAcquire(t, l, schemas.Low) }()
		synctest.Wait()
		sent := r.now()
		l.CloseBreaker(time.Now()) // the only slot granted since the breaker opened was the probe, so this success closes it
		at := time.Now()
		if <-waiter; time.Since(at) > ms {
			t.Errorf("a rejected caller got its permit %v after the breaker closed", time.Since(at))
		}
		if events, want := r.sentEvents(), fmt.Sprintf(";close %d;", sent); !strings.Contains(events, want) {
			t.Errorf("got events %q, want %q", events, want)
		}
		if !l.BreakerOpenSince(at) || !l.BreakerOpenSince(at.Add(-time.Hour)) || l.BreakerOpenSince(time.Now().Add(ms)) {
			t.Error("BreakerOpenSince is wrong after the breaker closed")
		}
		n := len(r.demands)
		l.CloseBreaker(time.Now())
		elapse(time.Second)
		if len(r.demands) != n || testutil.ToFloat64(l.metrics.breakerOpen) != 0 {
			t.Errorf("got %d more calls after the breaker closed", len(r.demands)-n)
		}
	})
}

func TestBreaker_LearnedStateReleasesSlots(t *testing.T) {
	r := &redisDouble{}
	r.answer = func(n int, d demand) (grant, error) {
		if n == 0 {
			return grant{now: r.now(), low: []time.Duration{100 * ms}}, nil
		}
		return grant{now: r.now(), backHigh: 400 * ms, backLow: 400 * ms, refusalHigh: refusedByBreaker, refusalLow: refusedByBreaker}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, lane := range []schemas.Lane{schemas.Low, schemas.High} {
			go func() {
				if _, err := l.Acquire(ctx, lane, Call{}); err == nil {
					t.Error("a permit")
				}
			}()
			synctest.Wait()
		}
		elapse(200 * ms)
	})
}

func TestBreaker_StaysOpenBehindAStop(t *testing.T) {
	r := &redisDouble{answer: grantAll}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		learn := func(high, low refusal) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.alloc.applyBreakerState(answer{grant: grant{refusalHigh: high, refusalLow: low}, then: time.Now()})
			return l.alloc.breaker.open.Load()
		}
		for i, c := range []struct {
			high, low refusal
			want      bool
		}{
			{notRefused, refusedByStop, false},
			{notRefused, refusedByBreaker, true},
			{refusedByStop, refusedByStop, true},
			{refusedByDayCount, refusedByDayCount, true},
			{refusedByStop, refusedByBreaker, true},
			{refusedByBackoff, 1, false},
			{refusedByBreaker, refusedByBreaker, true},
			{notRefused, notRefused, false},
		} {
			if got := learn(c.high, c.low); got != c.want {
				t.Errorf("reply %d: got breaker open %v", i, got)
			}
		}
	})
}

func TestBreaker_RepeatsUnconfirmedEvents(t *testing.T) {
	r := &redisDouble{}
	r.answer = func(n int, d demand) (grant, error) {
		if n == 0 || n == 2 {
			return grant{}, context.DeadlineExceeded
		}
		return grant{now: r.now(), refusalLow: refusedByBreaker}, nil
	}
	simulated(t, r, func(t *testing.T, l *Limiter) {
		l.OpenBreaker(time.Second, time.Second, time.Now())
		elapse(5 * time.Second)
		l.CloseBreaker(time.Now())
		elapse(5 * time.Second)
		if events := r.sentEvents(); strings.Count(events, "open ") != 2 || strings.Count(events, "close ") != 2 {
			t.Errorf("got events %q", events)
		}
	})
}

// sharing is a set of limiters of one source that share one Redis. They execute the real script in a
// synctest bubble.
type sharing struct {
	*testing.T
	limiters []*Limiter
	mu       sync.Mutex
	spent    [][]time.Time // times of the calls that each limiter has permitted
}

// shared runs the test with n limiters, each with `waiters` waiters. A waiter that gets a permit
// calls `sent`, which simulates the upstream call and reports its result to the limiter.
func shared(t *testing.T, n, waiters int, sent func(s *sharing, l *Limiter), test func(s *sharing)) {
	_, m := servicetest.MiniRedis(t)
	run, out := script("nexon", slowClient(t, m.Addr())), newOutside(t)
	synctest.Test(t, func(t *testing.T) {
		s := &sharing{T: t, spent: make([][]time.Time, n)}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var redis sync.Mutex
		for i := range n {
			l, err := newLimiter("nexon", second(500, 450, 100, 0), func(_ context.Context, d demand) (g grant, err error) {
				sleep(time.Duration(1+i) * 300 * time.Microsecond)
				redis.Lock()
				now := time.Now()
				out.do(func() {
					m.SetTime(now)
					g, err = run(context.Background(), d)
				})
				redis.Unlock()
				sleep(time.Duration(1+i) * 300 * time.Microsecond)
				return g, err
			}, withoutLogs(Deps{}))
			if err != nil {
				t.Fatal(err)
			}
			s.limiters = append(s.limiters, l)
			wg.Go(func() {
				if err := l.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			for w := range waiters {
				lane := []schemas.Lane{schemas.Low, schemas.High}[w%2]
				wg.Go(func() {
					for {
						p, err := l.Acquire(ctx, lane, Call{})
						if err != nil {
							return
						}
						if p.Spend() {
							s.mu.Lock()
							s.spent[i] = append(s.spent[i], time.Now())
							s.mu.Unlock()
							sent(s, l)
						}
					}
				})
			}
		}
		test(s)
		stop()
		wg.Wait()
	})
}

// since returns the times of the calls of all limiters since `from`, sorted.
func (s *sharing) since(from time.Time) (all []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, spent := range s.spent {
		for _, at := range spent {
			if !at.Before(from) {
				all = append(all, at)
			}
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

func TestBreaker_FleetSendsOneProbePerPause(t *testing.T) {
	var unhealthy sync.Map // the limiters whose upstream is unhealthy
	shared(t, 3, 64, func(s *sharing, l *Limiter) {
		at := time.Now()
		sleep(20 * ms) // the upstream's response takes 20 ms
		if _, is := unhealthy.Load(l); is {
			l.OpenBreaker(5*time.Second, time.Minute, at)
		} else {
			l.CloseBreaker(at)
		}
	}, func(s *sharing) {
		elapse(4 * time.Second)
		for _, l := range s.limiters {
			unhealthy.Store(l, true)
		}
		elapse(100 * ms) // wait until the first responses have arrived
		for i, l := range s.limiters {
			if !l.alloc.breaker.open.Load() {
				t.Errorf("limiter %d: breaker is not open", i)
			}
		}
		reported := time.Now()
		elapse(horizon + permitLife)
		quiet := time.Now()
		elapse(10*time.Minute - quiet.Sub(reported))
		probes := s.since(quiet)
		if len(probes) != 12 {
			t.Fatalf("got %d calls in ten minutes, want 12", len(probes))
		}
		last := reported
		for i, at := range probes {
			pause := min(time.Minute, 5*time.Second<<i)
			if got := at.Sub(last); got < pause-150*ms || got > pause+50*ms {
				t.Errorf("probe %d: got pause %v, want %v", i, got, pause)
			}
			last = at
		}
		unhealthy.Clear()
		for len(s.since(last.Add(1))) == 0 {
			elapse(10 * ms)
		}
		recovered := s.since(last.Add(1))[0].Add(20 * ms)
		elapse(time.Until(recovered.Add(time.Second)))
		for i, l := range s.limiters {
			s.mu.Lock()
			first := slices.IndexFunc(s.spent[i], func(at time.Time) bool { return at.After(recovered) })
			s.mu.Unlock()
			if first < 0 || l.alloc.breaker.open.Load() {
				t.Errorf("limiter %d sends nothing a second after a success", i)
			}
		}
		if n := len(s.since(recovered)); n < 100 || n > 260 {
			t.Errorf("got %d calls in the first second, want about half of 450", n)
		}
		elapse(11 * time.Second)
		if n := len(s.since(time.Now().Add(-time.Second))); n < 430 {
			t.Errorf("got %d calls in the twelfth second, want 450", n)
		}
	})
}

func TestBreaker_UnusedProbeKeepsTheSchedule(t *testing.T) {
	shared(t, 2, 0, nil, func(s *sharing) {
		elapse(2 * time.Second)
		a, b := s.limiters[0], s.limiters[1]
		p := mustAcquire(s.T, a, schemas.Low)
		p.Spend()
		a.OpenBreaker(2*time.Second, 4*time.Second, time.Now())
		reported := time.Now()
		elapse(10 * ms)
		ctx, cancel := context.WithTimeout(s.Context(), 3*time.Second)
		if _, err := a.Acquire(ctx, schemas.High, Call{}); err != nil { // limiter a gets the permit and never uses it, as if its process had crashed
			s.Error(err)
		}
		cancel()
		if at := time.Since(reported); at < 2*time.Second || at > 2100*ms {
			s.Errorf("got the first probe after %v", at)
		}
		if p := mustAcquire(s.T, b, schemas.Low); !p.Spend() || !b.alloc.breaker.open.Load() {
			s.Error("the second permit is not a probe")
		}
		if at := time.Since(reported); at < 6*time.Second || at > 6600*ms {
			s.Errorf("got the second probe after %v, want 6 s", at)
		}
	})
}

func TestBreaker_ReplacesAnExpiredProbe(t *testing.T) {
	shared(t, 1, 0, nil, func(s *sharing) {
		elapse(2 * time.Second)
		l := s.limiters[0]
		mustAcquire(s.T, l, schemas.Low).Spend()
		l.OpenBreaker(8*time.Second, time.Minute, time.Now())
		elapse(10 * ms)
		p := mustAcquire(s.T, l, schemas.High)
		granted := time.Now()
		elapse(2 * permitLife) // the permit expires, as if the machine had stalled
		if p.Spend() {
			s.Fatal("an expired permit was spent")
		}
		if p := mustAcquire(s.T, l, schemas.High); !p.Spend() {
			s.Error("the second permit is not a probe")
		}
		if at := time.Since(granted); at < time.Second || at > 3*time.Second {
			s.Errorf("got the second probe %v after the unsent first one", at)
		}
	})
}

func TestBreaker_ContextAndChannelFollowIt(t *testing.T) {
	shared(t, 1, 0, nil, func(s *sharing) {
		elapse(2 * time.Second)
		l := s.limiters[0]
		mustAcquire(s.T, l, schemas.Low).Spend()
		healthy := l.UntilBreakerOpens()
		if healthy.Err() != nil {
			s.Fatal("UntilBreakerOpens has ended while the breaker is closed")
		}
		<-l.BreakerClosed()
		l.OpenBreaker(time.Second, time.Second, time.Now())
		<-healthy.Done()
		closed := l.BreakerClosed()
		select {
		case <-closed:
			s.Error("BreakerClosed is closed while the breaker is open")
		default:
		}
		mustAcquire(s.T, l, schemas.Low).Spend()
		l.CloseBreaker(time.Now())
		mustAcquire(s.T, l, schemas.Low).Spend()
		<-closed
		if l.UntilBreakerOpens().Err() != nil {
			s.Error("UntilBreakerOpens has ended after the breaker closed")
		}
	})
}

func TestBreaker_ProbesBothLanes(t *testing.T) {
	shared(t, 1, 0, nil, func(s *sharing) {
		elapse(2 * time.Second)
		l := s.limiters[0]
		mustAcquire(s.T, l, schemas.Low).Spend()
		l.OpenBreaker(time.Second, time.Second, time.Now())
		var mu sync.Mutex
		var lanes []schemas.Lane
		ctx, stop := context.WithCancel(s.Context())
		var wg sync.WaitGroup
		for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
			wg.Go(func() {
				for { // this caller makes calls one after the other, and all of them fail
					p, err := l.Acquire(ctx, lane, Call{})
					if err != nil {
						return
					}
					if p.Spend() {
						mu.Lock()
						lanes = append(lanes, lane)
						mu.Unlock()
					}
				}
			})
		}
		elapse(40 * time.Second)
		stop()
		wg.Wait()
		// The lane of a probe is random. One lane gets all 40 probes only once in 2^39 runs.
		if n := len(lanes); n < 30 || !slices.Contains(lanes, schemas.High) || !slices.Contains(lanes, schemas.Low) {
			s.Errorf("%d probes: %v", n, lanes)
		}
	})
}
