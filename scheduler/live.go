package scheduler

import (
	"context"
	"time"
)

// enabled applies the current settings, and reports whether prefetching is enabled.
func (s *Scheduler) enabled(ctx context.Context) (enabled bool) {
	if s.live == nil {
		return true
	}
	s.Schedule, enabled = s.live(ctx)
	return enabled
}

// idle resets the metrics while prefetching is disabled: no lag, and an unchanged price.
func (s *Scheduler) idle() {
	s.lag, s.pricedAt = 0, time.Time{}
	s.metrics.setFirstDue(time.Time{})
	s.metrics.rate.Set(0)
}
