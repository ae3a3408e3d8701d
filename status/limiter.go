package status

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/limiter"
)

// WithStop corrects the state of a view by the stored override, so that a stop or resume is shown at
// once. Workers report it to Redis up to two seconds later, or never if no worker runs. set is nil if
// the override could not be read.
func WithStop(view limiter.View, set *limiter.Override) limiter.View {
	switch obeyed := view.State == limiter.StateStopped; {
	case set == nil:
	case set.Stopped && !obeyed:
		view.State, view.Until = limiter.StateStopping, nil
		view.High.PerSecond, view.Low.PerSecond = 0, 0
	case !set.Stopped && obeyed && view.NewestRevision > view.Revision:
		view.State = limiter.StateResuming
	}
	return view
}

// LimiterMessage describes the state of a source's limiter. The result is a part of a sentence.
// formatTime formats the time of a day.
func LimiterMessage(v *limiter.View, formatTime func(time.Time) string) string {
	until := ""
	if v.Until != nil {
		until = formatTime(*v.Until)
	}
	switch v.State {
	case limiter.StateFlowing:
		return "nothing blocks calls"
	case limiter.StateUnused:
		return "no worker has requested a permit yet"
	case limiter.StateBackingOff:
		return "backing off until " + until + ", because the upstream rejected calls"
	case limiter.StateBreakerOpen:
		if until == "" {
			return "the circuit breaker is half-open: one probe call is in flight"
		}
		return "the circuit breaker is open, because the upstream is unhealthy; next probe call at " + until
	case limiter.StateRamping:
		return fmt.Sprintf("ramping up after a backoff, at %.0f %% of its rate", v.RampRatio*100)
	case limiter.StateStopped:
		return "stopped by an operator, until it is resumed"
	case limiter.StateStopping:
		if len(v.Processes) == 0 {
			return "a stop is set, but no worker is running to apply it"
		}
		return "a stop is set; all processes apply it within two seconds"
	case limiter.StateResuming:
		return "a resume is set; all processes apply it within two seconds"
	case limiter.StateQuietPeriod:
		return "calls wait until " + until + ", because the limiter's state was lost"
	case limiter.StateRestoringCount:
		return "calls wait until the daily count is restored"
	}
	return "it is " + string(v.State)
}
