package limiter

import (
	"math"
	"testing"
	"time"
)

func TestLowMayUseWhatTheNarrowestPolicyLeavesIt(t *testing.T) {
	quota := func(ceilings ...Ceiling) Quota {
		q, err := NewQuota(Config{
			Jitter: 10 * time.Millisecond, LowCeilings: ceilings,
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
	noon := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC) // in Seoul
	midnight := noon.Add(12 * time.Hour)
	view := func(state string, rate float64, left int64) View {
		return View{State: state, At: noon, Rate: rate, Policies: []PolicyView{{Name: "second"}, {Name: "day", LeftForLow: left, ResetsAt: &midnight}}}
	}
	evening := Ceiling{From: 19, To: 24, Rate: 150}
	for name, c := range map[string]struct {
		quota Quota
		view  View
		want  float64
	}{
		"the window":                {quota(), view("flowing", 1, 1e9), 350},
		"half the rate of a ramp":   {quota(), view("ramping", 0.5, 1e9), 175},
		"what the day has left":     {quota(), view("flowing", 1, 43_200*100), 100},
		"nothing left":              {quota(), view("flowing", 1, 0), 0},
		"the hour's ceiling":        {quota(evening, Ceiling{Rate: 250}), view("flowing", 1, 1e9), 250},
		"no ceiling at this hour":   {quota(evening), view("flowing", 1, 1e9), 350},
		"a ceiling of nothing":      {quota(Ceiling{}), view("flowing", 1, 1e9), 0},
		"an emergency stop":         {quota(), view("stopped", 1, 1e9), 0},
		"a brake":                   {quota(), view("braked", 1, 1e9), 0},
		"a probing stop":            {quota(), view(probing, 1, 1e9), 0},
		"a day that is not counted": {quota(), view(uncounted, 1, 1e9), 0},
		"nothing was called yet":    {quota(), View{State: unused, At: noon, Rate: 1}, 350},
	} {
		if got := c.quota.LowPerSecond(c.view); math.Abs(got-c.want) > 0.02*c.want+1e-6 {
			t.Errorf("%s: %.1f a second, want %.1f", name, got, c.want)
		}
	}
}
