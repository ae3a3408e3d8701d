package status

import (
	"fmt"
	"math"
	"time"

	"github.com/freshet/freshet/limiter"
)

// WithStop corrects the state in a limiter view with the stored override, so that a stop or resume
// is shown at once. Workers report the change to Redis up to two seconds later, or never if no
// worker runs. `set` is nil if the override could not be read.
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
// The parameter formatTime formats a time of day.
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
		return "calls wait until " + until + ", because Redis lost the state of the limiter, or its clock was set forward"
	case limiter.StateRestoringCount:
		return "calls wait until the daily count is restored"
	}
	return "it is " + string(v.State)
}

// allowedRate returns the calls a second that the limiter allows now: the rate of the policy with the
// shortest window, 0 while no call is allowed, or NaN if no policy has a window.
func allowedRate(v limiter.View) float64 {
	limit, shortest := math.NaN(), time.Duration(0)
	allowed := v.RampRatio
	if !v.State.AllowsCalls() {
		allowed = 0
	}
	for _, p := range v.Policies {
		window, err := time.ParseDuration(p.Window)
		// A policy without remaining calls sets the rate to 0 only if it counts for a day or for a
		// window of at least an hour. A shorter window allows calls again so soon that a chart
		// would not show the pause.
		long := p.Window == limiter.Day.String() || err == nil && window >= time.Hour
		if long && p.Used != nil && p.Remaining == 0 {
			allowed = 0
		}
		if err != nil || window <= 0 || shortest > 0 && window >= shortest {
			continue
		}
		target := p.Target
		if target == 0 {
			target = p.Limit
		}
		shortest, limit = window, float64(target)/window.Seconds()
	}
	return limit * allowed
}
