package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

func TestMetrics_CountSkippedByReason(t *testing.T) {
	w := newWorld(t, 0)
	s := w.scheduler()
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, seoul)
	at := func(now time.Time, change func(*prefetched.Candidate)) prefetched.Candidate {
		c := candidate(1, prefetched.Hot)
		c.Due = now
		change(&c)
		return c
	}
	for why, c := range map[string]prefetched.Candidate{
		"":           at(noon, func(*prefetched.Candidate) {}),
		skipFresh:    at(noon, func(c *prefetched.Candidate) { c.State.CheckedAt = noon.Add(-time.Minute) }),
		skipHeld:     at(noon, func(c *prefetched.Candidate) { c.Status.State = store.Suspended }),
		skipInactive: at(noon, func(c *prefetched.Candidate) { c.Enabled = false }),
		skipNotReady: at(noon.Add(-11*time.Hour), func(*prefetched.Candidate) {}),
		skipOff:      at(noon, func(c *prefetched.Candidate) { c.Entity.Facet = "another" }),
	} {
		before := map[string]float64{}
		for _, of := range []string{skipFresh, skipHeld, skipInactive, skipNotReady, skipOff} {
			before[of] = testutil.ToFloat64(s.metrics.skipped.WithLabelValues(of))
		}
		if move := s.decide(c.Due)(c); move.Enqueue != (why == "") {
			t.Errorf("%q: %+v", why, move)
		}
		for of, n := range before {
			want := n
			if of == why {
				want++
			}
			if got := testutil.ToFloat64(s.metrics.skipped.WithLabelValues(of)); got != want {
				t.Errorf("%q: count of %q: got %v, want %v", why, of, got, want)
			}
		}
	}
}

func TestMetrics_LagRisesWithoutTicks(t *testing.T) {
	w := newWorld(t, 5)
	s := w.scheduler()
	if s.metrics.lag(time.Now().Add(time.Hour)) < time.Hour {
		t.Error("lag: got 0 before the first tick, want more")
	}
	next, err := s.tick(t.Context(), w.now)
	if err != nil || s.metrics.lag(w.now) != 0 {
		t.Fatalf("got lag %v, %v", s.metrics.lag(w.now), err)
	}
	s.capacity = func(context.Context, time.Time) (Capacity, error) { return Capacity{}, errors.New("nobody knows") }
	later := next.Add(time.Hour)
	if _, err := s.tick(t.Context(), later); err == nil {
		t.Fatal("the tick succeeded, want an error")
	}
	if got := s.metrics.lag(later); got != time.Hour {
		t.Errorf("lag an hour after the first due time: got %v", got)
	}
	// At night the day's content is not ready. The delay until it is ready does not count as lag.
	s.capacity = func(context.Context, time.Time) (Capacity, error) { return Capacity{PerSecond: 250, Share: 1}, nil }
	night := time.Date(2026, 11, 21, 1, 0, 0, 0, seoul)
	if _, err := s.tick(t.Context(), night); err != nil || s.metrics.lag(night.Add(time.Hour)) != 0 {
		t.Errorf("lag at night: got %v, %v, want 0", s.metrics.lag(night.Add(time.Hour)), err)
	}
}
