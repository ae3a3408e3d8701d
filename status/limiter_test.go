package status

import (
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
)

func TestLimiterMessage(t *testing.T) {
	until := time.Date(2026, 1, 27, 12, 1, 0, 0, time.UTC)
	for want, v := range map[string]limiter.View{
		"nothing blocks calls":                                                                              {State: limiter.StateFlowing},
		"no worker has requested a permit yet":                                                              {State: limiter.StateUnused},
		"backing off until 12:01, because the upstream rejected calls":                                      {State: limiter.StateBackingOff, Until: &until},
		"the circuit breaker is half-open: one probe call is in flight":                                     {State: limiter.StateBreakerOpen},
		"the circuit breaker is open, because the upstream is unhealthy; next probe call at 12:01":          {State: limiter.StateBreakerOpen, Until: &until},
		"ramping up after a backoff, at 62 % of its rate":                                                   {State: limiter.StateRamping, RampRatio: 0.62},
		"stopped by an operator, until it is resumed":                                                       {State: limiter.StateStopped},
		"a stop is set, but no worker is running to apply it":                                               {State: limiter.StateStopping},
		"a stop is set; all processes apply it within two seconds":                                          {State: limiter.StateStopping, Processes: make([]limiter.ProcessView, 1)},
		"a resume is set; all processes apply it within two seconds":                                        {State: limiter.StateResuming},
		"calls wait until 12:01, because Redis lost the state of the limiter, or its clock was set forward": {State: limiter.StateQuietPeriod, Until: &until},
		"calls wait until the daily count is restored":                                                      {State: limiter.StateRestoringCount},
		"it is new": {State: "new"},
	} {
		if got := LimiterMessage(&v, func(t time.Time) string { return t.Format("15:04") }); got != want {
			t.Errorf("message of %s: got %q, want %q", v.State, got, want)
		}
	}
}

func TestWithStop(t *testing.T) {
	for name, c := range map[string]struct {
		state  limiter.State
		set    *limiter.Override
		newest int64
		want   limiter.State
	}{
		"stop not applied":   {limiter.StateFlowing, &limiter.Override{Stopped: true}, 4, limiter.StateStopping},
		"stop applied":       {limiter.StateStopped, &limiter.Override{Stopped: true}, 4, limiter.StateStopped},
		"resume not applied": {limiter.StateStopped, &limiter.Override{}, 4, limiter.StateResuming},
		"override unread":    {limiter.StateStopped, nil, 4, limiter.StateStopped},
		"no newer revision":  {limiter.StateStopped, &limiter.Override{}, 3, limiter.StateStopped},
	} {
		v := limiter.View{State: c.state, Revision: 3, NewestRevision: c.newest, High: limiter.Share{PerSecond: 5}}
		v = WithStop(v, c.set)
		if v.State != c.want || (v.High.PerSecond == 0) != (c.want == limiter.StateStopping) {
			t.Errorf("%s: got %s and %v calls a second, want %s, and no calls only while stopping", name, v.State, v.High.PerSecond, c.want)
		}
	}
}
