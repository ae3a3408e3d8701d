package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/store"
)

func TestWhatIsLeftAloneIsCountedByWhy(t *testing.T) {
	w := newWorld(t, 0)
	s := w.scheduler()
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, seoul)
	at := func(now time.Time, change func(*store.Candidate)) store.Candidate {
		c := candidate(1, store.Hot)
		c.Due = now
		change(&c)
		return c
	}
	for why, c := range map[string]store.Candidate{
		"":       at(noon, func(*store.Candidate) {}),
		fresh:    at(noon, func(c *store.Candidate) { c.State.CheckedAt = noon.Add(-time.Minute) }),
		held:     at(noon, func(c *store.Candidate) { c.Status.State = store.Suspended }),
		inactive: at(noon, func(c *store.Candidate) { c.Enabled = false }),
		waiting:  at(noon.Add(-11*time.Hour), func(*store.Candidate) {}),
		off:      at(noon, func(c *store.Candidate) { c.Entity.Facet = "another" }),
	} {
		before := map[string]float64{}
		for _, of := range []string{fresh, held, inactive, waiting, off} {
			before[of] = testutil.ToFloat64(s.metrics.alone.WithLabelValues(of))
		}
		if move := s.decide(c.Due)(c); move.Enqueue != (why == "") {
			t.Errorf("%q: %+v", why, move)
		}
		for of, n := range before {
			want := n
			if of == why {
				want++
			}
			if got := testutil.ToFloat64(s.metrics.alone.WithLabelValues(of)); got != want {
				t.Errorf("%q: %q is counted as %v, want %v", why, of, got, want)
			}
		}
	}
}

func TestWhoCanNotLookFallsBehind(t *testing.T) {
	w := newWorld(t, 5)
	s := w.scheduler()
	if s.metrics.behind(time.Now().Add(time.Hour)) < time.Hour {
		t.Error("who has never looked is not behind")
	}
	next, err := s.tick(t.Context(), w.now)
	if err != nil || s.metrics.behind(w.now) != 0 {
		t.Fatalf("behind by %v, %v", s.metrics.behind(w.now), err)
	}
	s.look = func(context.Context, time.Time) (Room, error) { return Room{}, errors.New("nobody knows") }
	later := next.Add(time.Hour)
	if _, err := s.tick(t.Context(), later); err == nil {
		t.Fatal("it looked")
	}
	if got := s.metrics.behind(later); got != time.Hour {
		t.Errorf("an hour after the first was due it is behind by %v", got)
	}
	// The night is nobody's delay, and the morning asks for what waited.
	s.look = func(context.Context, time.Time) (Room, error) { return Room{PerSecond: 250, Share: 1}, nil }
	night := time.Date(2026, 11, 21, 1, 0, 0, 0, seoul)
	if _, err := s.tick(t.Context(), night); err != nil || s.metrics.behind(night.Add(time.Hour)) != 0 {
		t.Errorf("at night it is behind by %v, %v", s.metrics.behind(night.Add(time.Hour)), err)
	}
}
