package scheduler

import (
	"context"
	"time"
)

// enabled puts the schedule in force, and reports whether entities are prefetched.
func (s *Scheduler) enabled(ctx context.Context) (enabled bool) {
	if s.live == nil {
		return true
	}
	s.Schedule, enabled = s.live(ctx)
	return enabled
}

// idle notes that prefetching is disabled: nothing is behind, and the price stays as it is.
func (s *Scheduler) idle() {
	s.lag, s.pricedAt = 0, time.Time{}
	s.metrics.setFirstDue(time.Time{})
	s.metrics.rate.Set(0)
}
