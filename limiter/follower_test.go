package limiter

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/schemas"
)

// settingsDouble implements Settings in memory. A test can make reads fail or last longer.
type settingsDouble struct {
	mu       sync.Mutex
	override Override
	revision int64
	err      error
	takes    time.Duration // how long each read of the settings takes
}

func (s *settingsDouble) Quota(context.Context, string) (Override, int64, error) {
	if s.takes > 0 {
		<-time.After(s.takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.override, s.revision, s.err
}

func (s *settingsDouble) set(o Override) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.override, s.err = o, nil
	s.revision++
}

func target(n int) Override {
	return Override{Policies: map[string]PolicyOverride{"second": {Target: &n}}}
}

// withDay returns the reference quota with a day.
func withDay() Config {
	c := second(500, 450, 100, 0)
	c.Policies = append(c.Policies, Policy{Name: "day", Limit: 20_000_000, Window: Day, TimeZone: "Asia/Seoul", HighReserve: Reserve{Rate: 25}})
	return c
}

// acquireLater acquires a permit in the background, and returns the channel that receives it.
func acquireLater(t *testing.T, l *Limiter, lane schemas.Lane) chan *Permit {
	t.Helper()
	got := make(chan *Permit, 1)
	go func() {
		if p, err := l.Acquire(t.Context(), lane, Call{}); err == nil { // Acquire fails only if the test has ended
			got <- p
		}
	}()
	return got
}

func TestSettings_NoPermitUntilRead(t *testing.T) {
	r := &redisDouble{answer: grantAll}
	s := &settingsDouble{err: errors.New("the database is away")}
	simulatedWith(t, r, withDay(), Deps{Settings: s}, func(t *testing.T, l *Limiter) {
		high, low := acquireLater(t, l, schemas.High), acquireLater(t, l, schemas.Low)
		l.BackOff(time.Second, time.Now())
		elapse(10 * time.Second)
		if len(r.demands) > 0 || len(high)+len(low) > 0 {
			t.Errorf("got calls to Redis: %+v", r.demands)
		}
		s.set(Override{Stopped: true})
		elapse(2 * time.Second)
		if len(high)+len(low) > 0 {
			t.Error("got a permit while the source is stopped")
		}
		s.set(target(400))
		began := time.Now()
		for _, got := range []chan *Permit{high, low} {
			if p := <-got; !p.Spend() || time.Since(began) > 2*time.Second {
				t.Errorf("got a permit after %v", time.Since(began))
			}
		}
	})
}

func TestSettings_ApplyWithinTwoSeconds(t *testing.T) {
	for _, takes := range []time.Duration{0, 900 * ms} {
		r := &redisDouble{answer: grantAll}
		s := &settingsDouble{takes: takes}
		simulatedWith(t, r, second(500, 450, 100, 0), Deps{Settings: s}, func(t *testing.T, l *Limiter) {
			revision := int64(0)
			for step := range 15 { // the test stores the change at different times between two reads of the settings
				elapse(time.Duration(step) * 130 * ms)
				revision++
				s.set(target(400 + step))
				elapse(2 * time.Second)
				mustAcquire(t, l, schemas.High)
				text := r.texts[len(r.texts)-1]
				if got := decodeQuota(text).Revision; got != revision {
					t.Fatalf("revision of the quota after two seconds: got %d, want %d", got, revision)
				}
				config, err := l.deps.config.With(target(400 + step))
				if err != nil {
					t.Fatal(err)
				}
				quota, err := NewQuota(config)
				if err != nil {
					t.Fatal(err)
				}
				if want := quota.encode(revision, false); text != want {
					t.Fatalf("got the quota %q, want %q", text, want)
				}
			}
		})
	}
}

func TestSettings_InvalidKeepQuotaButStop(t *testing.T) {
	r := &redisDouble{answer: grantAll}
	s := &settingsDouble{}
	var log bytes.Buffer
	deps := Deps{Settings: s, Log: slog.New(slog.NewTextHandler(&log, nil))}
	simulatedWith(t, r, second(500, 450, 100, 0), deps, func(t *testing.T, l *Limiter) {
		s.set(target(400))
		elapse(2 * time.Second)
		mustAcquire(t, l, schemas.Low)
		before := r.texts[len(r.texts)-1]
		for _, o := range []Override{target(500), {Policies: map[string]PolicyOverride{"minute": {}}}} {
			log.Reset()
			s.set(o)
			elapse(10 * time.Second)
			mustAcquire(t, l, schemas.Low)
			if got, want := decodeQuota(r.texts[len(r.texts)-1]).Policies, decodeQuota(before).Policies; !bytes.Equal(got, want) {
				t.Errorf("policies of the quota: got %s, want %s", got, want)
			}
			if n := strings.Count(log.String(), "quota settings are invalid"); n != 1 || strings.Contains(log.String(), "quota settings applied") {
				t.Errorf("logged %d times: %s", n, log.String())
			}
		}
		stop := target(500)
		stop.Stopped = true
		s.set(stop)
		elapse(2 * time.Second)
		got := acquireLater(t, l, schemas.High)
		elapse(time.Minute)
		if len(got) > 0 {
			t.Error("got a permit while the source is stopped")
		}
		s.set(target(500))
		if p := <-got; !p.Spend() {
			t.Error("Spend: got false, want true")
		}
		if got, want := decodeQuota(r.texts[len(r.texts)-1]).Policies, decodeQuota(before).Policies; !bytes.Equal(got, want) {
			t.Errorf("policies of the quota: got %s, want %s", got, want)
		}
	})
}

func TestStop_ReleasesSlotsUntilResumed(t *testing.T) {
	r := &redisDouble{}
	s := &settingsDouble{}
	ahead := func(_ int, d demand) (grant, error) {
		g := grant{now: r.now()}
		for i := range d.low {
			g.low = append(g.low, time.Duration(100+i)*ms)
		}
		return g, nil
	}
	r.answer = ahead
	simulatedWith(t, r, withDay(), Deps{Settings: s}, func(t *testing.T, l *Limiter) {
		s.set(Override{Stopped: true}) // the limiter reads this setting 1 s after its start
		elapse(950 * ms)
		var got []chan *Permit
		for range 10 {
			got = append(got, acquireLater(t, l, schemas.Low))
		}
		given := func() (n int) {
			for _, c := range got {
				n += len(c)
			}
			return n
		}
		synctest.Wait()
		l.mu.Lock()
		reserved := len(l.alloc.queues.low.slots)
		l.mu.Unlock()
		elapse(time.Minute)
		if refunded := strings.Count(r.sentEvents(), "refund "); reserved != 10 || refunded != reserved || given() > 0 {
			t.Errorf("%d reserved, %d refunded, %d handed out", reserved, refunded, given())
		}
		asked := len(r.demands)
		elapse(time.Minute)
		if n := len(r.demands) - asked; n > 0 {
			t.Errorf("got %d calls to Redis a minute while stopped", n)
		}
		s.set(Override{})
		elapse(2 * time.Second)
		if given() != 10 {
			t.Errorf("got %d of 10 permits after the resume", given())
		}
	})
}

func TestStop_ReleasesSlotsOfACallInFlight(t *testing.T) {
	r := &redisDouble{latency: 20 * ms}
	r.answer = func(_ int, d demand) (grant, error) {
		return grant{low: make([]time.Duration, d.low), now: r.now()}, nil
	}
	s := &settingsDouble{}
	simulatedWith(t, r, withDay(), Deps{Settings: s}, func(t *testing.T, l *Limiter) {
		s.set(Override{Stopped: true}) // the limiter reads this setting 1 s after its start
		elapse(990 * ms)
		got := acquireLater(t, l, schemas.Low) // Redis replies to this call at 1.01 s, just after the limiter has read the stop
		elapse(time.Minute)
		if refunded := strings.Count(r.sentEvents(), "refund "); len(got) > 0 || refunded != 1 {
			t.Errorf("while stopped: got %d permits and %d refunds, want 0 and 1", len(got), refunded)
		}
	})
}

func TestFollower_LogsFailureAndRecoveryOnce(t *testing.T) {
	r := &redisDouble{answer: func(_ int, d demand) (grant, error) {
		return grant{high: make([]time.Duration, d.high), low: make([]time.Duration, d.low), now: r0(), used: 5}, nil
	}}
	away := errors.New("the database is away")
	s, u := &settingsDouble{}, &usageDouble{}
	var log bytes.Buffer
	deps := Deps{Settings: s, Usage: u, Log: slog.New(slog.NewTextHandler(&log, nil))}
	simulatedWith(t, r, withDay(), deps, func(t *testing.T, l *Limiter) {
		mustAcquire(t, l, schemas.Low)
		s.fail(away)
		u.fail(away)
		elapse(40 * time.Second)
		s.fail(nil)
		u.fail(nil)
		elapse(10 * time.Second)
		for _, message := range []string{
			"quota settings not read from the database; the previous settings stay in force", "reading the quota settings works again",
			"count of the day's calls not saved in the database; saving is retried", "saving the count of the day's calls works again",
		} {
			if n := strings.Count(log.String(), `msg="`+message+`" source=nexon`); n != 1 {
				t.Errorf("message %q: got %d times, want 1:\n%s", message, n, log.String())
			}
		}
	})
}

// r0 returns a fixed time of Redis' clock, in µs.
func r0() int64 { return 1_800_000_000_000_000 }

func (s *settingsDouble) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}
