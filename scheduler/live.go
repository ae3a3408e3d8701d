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

// idle sets the state and the metrics for a time in which prefetching is disabled: the lag is 0,
// and the price does not change.
func (s *Scheduler) idle() {
	s.lag, s.pricedAt = 0, time.Time{}
	s.metrics.setFirstDue(time.Time{})
	s.metrics.rate.Set(0)
}
