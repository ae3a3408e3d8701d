package limiter

import (
	"testing"
	"time"
)

// The estimated delay ends when the view says that a pause or a day ends, or that a credential
// has budget again.
func TestEstimateWait_ReadsTheView(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	in := func(d time.Duration) *time.Time { then := at.Add(d); return &then }
	none, some := int64(0), int64(7)
	scope := func(credential string, left *int64, until time.Duration) ScopeView {
		return ScopeView{Policy: "primary", Scope: credential, Remaining: left, Until: in(until)}
	}
	halt := func(credential string, until time.Duration) ScopeView {
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
		"both breakers are open": {View{State: StateFlowing, Scopes: []ScopeView{halt("a", time.Minute), halt("b", 5*time.Second)}}, 5 * time.Second, ""},
	} {
		c.view.RampRatio, c.view.At = 1, at
		got := quota.EstimateWait(c.view)
		if got.Delay != c.want || got.Blocked != c.blocked {
			t.Errorf("%s: got delay %v, blocked %q; want %v, %q", name, got.Delay, got.Blocked, c.want, c.blocked)
		}
		if want := map[State]time.Duration{StateBackingOff: 40 * time.Second, StateBreakerOpen: 5 * time.Second}[c.blocked]; got.BlockedFor != want {
			t.Errorf("%s: got blocked for %v, want %v", name, got.BlockedFor, want)
		}
		if got.PerSecond < 18 || got.PerSecond > 20 && name != "stopped" {
			t.Errorf("%s: got %.1f calls a second, want 19", name, got.PerSecond)
		}
	}
	if got, want := (WaitEstimate{Delay: time.Minute, PerSecond: 20}).Wait(380), 79*time.Second; got != want {
		t.Errorf("got a wait of %v behind 380 calls, want %v", got, want)
	}
}
