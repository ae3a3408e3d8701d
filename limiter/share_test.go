package limiter

import (
	"math"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

func TestShare_LowUsesTheNarrowestPolicy(t *testing.T) {
	quota := func() Quota {
		q, err := NewQuota(Config{
			Jitter: 10 * time.Millisecond,
			Policies: []Policy{
				{Name: "second", Limit: 500, Window: Window(time.Second), Target: 450, HighReserve: Reserve{Calls: 100}},
				{Name: "day", Limit: 20_000_000, Window: Day, TimeZone: "Asia/Seoul", HighReserve: Reserve{Rate: 25}},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	noon := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC) // 12:00 in Seoul is 03:00 UTC
	midnight := noon.Add(12 * time.Hour)
	view := func(state State, rate float64, left int64) View {
		return View{State: state, At: noon, RampRatio: rate, Policies: []PolicyView{{Name: "second"}, {Name: "day", RemainingForLow: left, ResetsAt: &midnight}}}
	}
	for name, c := range map[string]struct {
		quota Quota
		view  View
		want  float64
	}{
		"the window":                {quota(), view(StateFlowing, 1, 1e9), 350},
		"half the rate of a ramp":   {quota(), view(StateRamping, 0.5, 1e9), 175},
		"what the day has left":     {quota(), view(StateFlowing, 1, 43_200*100), 100},
		"nothing left":              {quota(), view(StateFlowing, 1, 0), 0},
		"an emergency stop":         {quota(), view(StateStopped, 1, 1e9), 0},
		"a backoff":                 {quota(), view(StateBackingOff, 1, 1e9), 0},
		"an open breaker":           {quota(), view(StateBreakerOpen, 1, 1e9), 0},
		"a day that is not counted": {quota(), view(StateRestoringCount, 1, 1e9), 0},
		"nothing was called yet":    {quota(), View{State: StateUnused, At: noon, RampRatio: 1}, 350},
	} {
		if got := c.quota.LowPerSecond(c.view); math.Abs(got-c.want) > 0.02*c.want+1e-6 {
			t.Errorf("%s: %.1f a second, want %.1f", name, got, c.want)
		}
	}
}

func TestShare_NamesEachBound(t *testing.T) {
	q, err := NewQuota(Config{
		Jitter: 10 * time.Millisecond,
		Policies: []Policy{
			{Name: "second", Limit: 500, Window: Window(time.Second), Target: 450, HighReserve: Reserve{Calls: 100}},
			{Name: "day", Limit: 20_000_000, Window: Day, HighReserve: Reserve{Rate: 25}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	evening := time.Date(2026, 11, 20, 20, 0, 0, 0, time.UTC)
	midnight := evening.Add(4 * time.Hour)
	view := View{State: StateRamping, At: evening, RampRatio: 0.5, Policies: []PolicyView{
		{Name: "second"}, {Name: "day", Remaining: 125 * 4 * 3600, RemainingForLow: 100 * 4 * 3600, ResetsAt: &midnight},
	}}
	near := func(got, want float64) bool { return math.Abs(got-want) <= 0.02*want }
	are := func(s Share, perSecond float64, want ...Bound) {
		t.Helper()
		if !near(s.PerSecond, perSecond) || len(s.Bounds) != len(want) {
			t.Fatalf("%+v, want %v a second by %+v", s, perSecond, want)
		}
		for i, b := range s.Bounds {
			if b.Kind != want[i].Kind || b.Policy != want[i].Policy || !near(b.PerSecond, want[i].PerSecond) || !near(b.Reserved, want[i].Reserved) {
				t.Errorf("%+v, want %+v", b, want[i])
			}
		}
	}
	window, day := Bound{ByWindow, "second", 175, 50}, Bound{ByDay, "day", 100, 25}
	are(q.share(schemas.Low, view), 100, window, day)
	are(q.share(schemas.High, view), 225, Bound{ByWindow, "second", 225, 0})
	view.State = StateBackingOff
	are(q.share(schemas.Low, view), 0, window, day)
	are(q.share(schemas.High, view), 0, Bound{ByWindow, "second", 225, 0})
	view.State, view.Policies[1].Remaining, view.Policies[1].RemainingForLow = "flowing", 0, 0
	are(q.share(schemas.High, view), 0, Bound{ByWindow, "second", 225, 0}, Bound{ByDay, "day", 0, 0})
}
