package limiter

import (
	"testing"
	"time"
)

// The estimated delay must end when a call is possible again. This is the end of the backoff, of the
// breaker's pause or of the day, or the time at which a credential has units again. All these times are
// in the view.
func TestEstimateWait_ReadsTheView(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *time.Time { then := at.Add(d); return &then }
	none, some := int64(0), int64(7)
	scope := func(credential string, left *int64, until time.Duration) ScopeView {
		return ScopeView{Policy: "primary", Scope: credential, Remaining: left, Until: in(until)}
	}
	breakerOpen := func(credential string, until time.Duration) ScopeView {
		return ScopeView{Policy: "credential breaker", Scope: credential, BreakerOpen: true, Until: in(until)}
	}
	config := scopedConfig(
		Policy{Name: "second", Limit: 20, Window: Window(time.Second)},
		Policy{Name: "primary", Limit: 5000, Window: Window(time.Hour), Scope: "{credential}", Reported: true},
	)
	config.Credentials = 2
	quota, err := NewQuota(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		view    View
		want    time.Duration
		blocked State
	}{
		"flowing":            {View{State: StateFlowing}, 0, ""},
		"stopped":            {View{State: StateStopped}, 0, StateStopped},
		"backing off":        {View{State: StateBackingOff, Until: in(40 * time.Second)}, 40 * time.Second, StateBackingOff},
		"breaker open":       {View{State: StateBreakerOpen, Until: in(5 * time.Second)}, 5 * time.Second, StateBreakerOpen},
		"the day is used up": {View{State: StateFlowing, Policies: []PolicyView{{ResetsAt: in(6 * time.Minute)}}}, 6*time.Minute + dayMargin, ""},
		"the day has some":   {View{State: StateFlowing, Policies: []PolicyView{{ResetsAt: in(6 * time.Minute), Remaining: 1}}}, 0, ""},
		"one budget is used up": {
			View{State: StateFlowing, Scopes: []ScopeView{scope("a", &none, time.Minute), scope("b", &some, time.Minute)}}, 0, "",
		},
		"one budget is not known": {View{State: StateFlowing, Scopes: []ScopeView{scope("a", &none, time.Minute)}}, 0, ""},
		"both budgets are used up": {
			View{State: StateFlowing, Scopes: []ScopeView{scope("a", &none, 9*time.Minute), scope("b", &none, 5*time.Minute)}}, 5 * time.Minute, "",
		},
		"both breakers are open": {View{State: StateFlowing, Scopes: []ScopeView{breakerOpen("a", time.Minute), breakerOpen("b", 5*time.Second)}}, 5 * time.Second, ""},
	} {
		c.view.RampRatio, c.view.At = 1, at
		got := quota.EstimateWait(c.view)
		if got.Delay != c.want || got.Blocked != c.blocked {
			t.Errorf("%s: got delay %v, blocked %q; want %v, %q", name, got.Delay, got.Blocked, c.want, c.blocked)
		}
		if want := map[State]time.Duration{StateBackingOff: 40 * time.Second, StateBreakerOpen: 5 * time.Second}[c.blocked]; got.BlockedFor != want {
			t.Errorf("%s: got blocked for %v, want %v", name, got.BlockedFor, want)
		}
	}
}

// If several limits apply, the limit that needs the longest time to allow all earlier calls
// determines the wait.
func TestEstimateWait_QueuesBehindOtherCalls(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	reset := at.Add(6 * time.Minute)
	second := Policy{Name: "second", Limit: 10, Window: Window(time.Second)}
	for name, c := range map[string]struct {
		config Config
		view   View
		before float64
		want   time.Duration
	}{
		"the window has room":     {Config{Policies: []Policy{second}}, View{Policies: []PolicyView{{Name: "second", Remaining: 10}}}, 9, 0},
		"the window is used up":   {Config{Policies: []Policy{second}}, View{}, 100, 10 * time.Second},
		"a burst, then the rate":  {Config{Policies: []Policy{second}}, View{Policies: []PolicyView{{Name: "second", Remaining: 10}}}, 110, 10 * time.Second},
		"the rate rises again":    {Config{Policies: []Policy{second}}, View{RampRatio: 0.5}, 100, 20 * time.Second},
		"a reserve for LOW":       {Config{Policies: []Policy{{Name: "second", Limit: 10, Window: Window(time.Second), LowReserve: 5}}}, View{}, 100, 20 * time.Second},
		"partitions":              {Config{Policies: []Policy{{Name: "second", Limit: 200, Window: Window(time.Second), HighReserve: Reserve{Calls: 50}}}}, View{}, 1000, 5 * time.Second},
		"a longer window":         {Config{Policies: []Policy{second, {Name: "hour", Limit: 90, Window: Window(time.Hour)}}}, View{Policies: []PolicyView{{Name: "hour", Remaining: 30}}}, 120, time.Hour},
		"the day ends before":     {Config{Policies: []Policy{second, {Name: "day", Limit: 900, Window: Day}}}, View{Policies: []PolicyView{{Name: "second", Remaining: 10}, {Name: "day", Remaining: 50, ResetsAt: &reset}}}, 60, 6*time.Minute + dayMargin},
		"the day lasts":           {Config{Policies: []Policy{second, {Name: "day", Limit: 900, Window: Day}}}, View{Policies: []PolicyView{{Name: "day", Remaining: 500, ResetsAt: &reset}}}, 100, 10 * time.Second},
		"a reported limit ends":   {scopedConfig(second, Policy{Name: "hour", Limit: 5000, Window: Window(time.Hour), Reported: true}), View{Scopes: []ScopeView{{Policy: "hour", Remaining: new(int64(20)), Until: &reset}}}, 60, 6 * time.Minute},
		"a backoff and a queue":   {Config{Policies: []Policy{second}}, View{State: StateBackingOff, Until: &reset}, 100, 6*time.Minute + 10*time.Second},
		"only calls in flight":    {scopedConfig(Policy{Name: "in-flight", Limit: 2, Window: InFlight}), View{}, 100, 0},
		"one call in each second": {scopedConfig(Policy{Name: "gap", MinInterval: &MinInterval{Min: time.Second}}), View{}, 60, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			quota, err := NewQuota(c.config)
			if err != nil {
				t.Fatal(err)
			}
			if c.view.At = at; c.view.RampRatio == 0 {
				c.view.RampRatio = 1
			}
			got := quota.EstimateWait(c.view).Wait(c.before, 0, 0)
			if off := max(got-c.want, c.want-got); off > c.want/8 {
				t.Errorf("got %v behind %v calls, want %v", got, c.before, c.want)
			}
		})
	}
}

func TestWaitEstimate_SubtractsTimeThatPassed(t *testing.T) {
	quota, err := NewQuota(Config{Policies: []Policy{{Name: "second", Limit: 10, Window: Window(time.Second)}}})
	if err != nil {
		t.Fatal(err)
	}
	estimate := quota.EstimateWait(View{RampRatio: 1})
	if got := estimate.Wait(100, 2*time.Second, 4*time.Second); got < 6*time.Second || got > 7*time.Second {
		t.Errorf("got %v after 4 s of service, want 6.5s", got)
	}
	estimate.Delay = time.Minute
	if got := estimate.Wait(100, 2*time.Second, 4*time.Second); got < 68*time.Second || got > 69*time.Second {
		t.Errorf("got %v in a pause, want 68.5s", got)
	}
	if got := estimate.AtMost(2).Wait(100, time.Hour, 0); got != 50*time.Second {
		t.Errorf("got %v at two calls a second, want 50s", got)
	}
}
