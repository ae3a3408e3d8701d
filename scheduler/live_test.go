package scheduler

import (
	"context"
	"testing"
	"time"
)

// setLive changes the settings that the scheduler reads before each tick.
func (s *testScheduler) setLive(t *testing.T, enabled bool, change func(*Config)) {
	t.Helper()
	c := DefaultConfig()
	c.Mode = Tiers
	if change != nil {
		change(&c)
	}
	schedule, err := NewSchedule(cappedBudget(), map[string]Facet{"character": {Config: c, Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	schedule.WithPriceOf(s.Schedule)
	s.Scheduler.live = func(context.Context) (*Schedule, bool) { return schedule, enabled }
}

// requestCount returns the number of requests that were published.
func (w *world) requestCount() (n int) {
	for _, all := range w.published {
		n += len(all)
	}
	return n
}

// run calls the scheduler's tick every ten simulated seconds, for the duration `length`.
func (w *world) run(s *testScheduler, length time.Duration) {
	w.Helper()
	for end := w.now.Add(length); w.now.Before(end); w.now = w.now.Add(10 * time.Second) {
		if _, err := s.tick(s.ctx, w.now); err != nil {
			w.Fatal(err)
		}
		w.finishRefreshes()
	}
}

func TestLive_DisabledRequestsNothing(t *testing.T) {
	w := newWorld(t, 50)
	s := w.scheduler()
	s.setLive(t, false, nil)
	w.run(s, 2*time.Hour)
	if got := w.requestCount(); got != 0 {
		t.Errorf("requests while disabled: got %d, want 0", got)
	}
	next, err := s.tick(s.ctx, w.now)
	if want := w.now.Add(minTick); err != nil || !next.Equal(want) {
		t.Errorf("next tick while disabled: got %v, %v, want %v", next, err, want)
	}
	if got := s.metrics.lag(w.now); got != 0 {
		t.Errorf("lag while disabled: got %v, want 0", got)
	}
	s.setLive(t, true, nil)
	w.run(s, time.Hour)
	if got := w.requestCount(); got < 50 {
		t.Errorf("requests in an hour after it is enabled: got %d, want at least 50", got)
	}
}

// A changed interval applies to an entity from its next refresh on.
func TestLive_ChangedIntervalHoldsNextTime(t *testing.T) {
	requests := func(hot time.Duration) int {
		w := newWorld(t, 50)
		s := w.scheduler()
		s.setLive(t, true, nil)
		w.run(s, 2*time.Hour)
		before := w.requestCount()
		s.setLive(t, true, func(c *Config) { c.Tiers.Hot.Every = hot })
		w.run(s, 6*time.Hour)
		return w.requestCount() - before
	}
	if usual, often := requests(time.Hour), requests(30*time.Minute); often < usual*3/2 {
		t.Errorf("requests in 6 h: got %d every 30m and %d every hour, want half as many more at least", often, usual)
	}
}

func TestLive_ScheduleKeepsThePrice(t *testing.T) {
	w := newWorld(t, 1)
	s := w.scheduler()
	s.price.Adopt(5)
	s.setLive(t, true, nil)
	w.run(s, time.Second)
	if got := s.price.Value(); got != 5 {
		t.Errorf("price: got %v, want 5", got)
	}
	for name, p := range s.policies {
		if p.price != s.price {
			t.Errorf("the policy of %s has a separate price", name)
		}
	}
}
