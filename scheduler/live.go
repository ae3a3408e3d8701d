package scheduler

import (
	"context"
	"time"
)

// enabled applies the current settings of the schedule, and reports whether prefetching is enabled.
func (s *Scheduler) enabled(ctx context.Context) (enabled bool) {
	if s.live == nil {
		return true
	}
	s.Schedule, enabled = s.live(ctx)
	return enabled
}

// idle is called instead of a tick while prefetching is disabled. It sets the lag to 0 and leaves
// the price unchanged.
func (s *Scheduler) idle() {
	s.lag, s.pricedAt = 0, time.Time{}
	s.metrics.setFirstDue(time.Time{})
	s.metrics.rate.Set(0)
}
