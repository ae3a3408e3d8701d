package limiter

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics_RateIsThatOfTheLastSecond(t *testing.T) {
	var s perSecond
	at := time.Unix(1_000_000, 0)
	for i := range 7 {
		s.count(at.Add(time.Duration(i) * 100 * time.Millisecond))
	}
	if n := s.last(at.Add(900 * time.Millisecond)); n != 0 {
		t.Errorf("%d calls in the second before the first one", n)
	}
	s.count(at.Add(1100 * time.Millisecond))
	if n := s.last(at.Add(1900 * time.Millisecond)); n != 7 {
		t.Errorf("got %d calls in the last full second, want 7", n)
	}
	if n := s.last(at.Add(2500 * time.Millisecond)); n != 1 {
		t.Errorf("got %d calls in the last full second, want 1", n)
	}
	if n := s.last(at.Add(3 * time.Second)); n != 0 {
		t.Errorf("got %d calls in a second without calls", n)
	}
	s.count(at.Add(3 * time.Second))
	s.count(at.Add(4 * time.Second))
	s.count(at.Add(3999 * time.Millisecond)) // this call is counted after a call of the next second, as if its goroutine had been delayed
	s.count(at.Add(4100 * time.Millisecond))
	if n := s.last(at.Add(4200 * time.Millisecond)); n != 2 {
		t.Errorf("got %d calls in the last full second, want 2", n)
	}
	if n := s.last(at.Add(5 * time.Second)); n != 2 {
		t.Errorf("got %d calls in the next second, want 2", n)
	}
	if n := s.last(at.Add(9 * time.Second)); n != 0 {
		t.Errorf("got %d calls of an old second, want 0", n)
	}
	s.count(at) // this call has an earlier time, because the clock was set back
	if n := s.last(at.Add(time.Second)); n != 1 {
		t.Errorf("got %d calls after the clock was set back, want 1", n)
	}
}

func TestMetrics_MirroredGaugesExpire(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics("nexon", reg)
	used := int64(3)
	m.view.show(View{State: StateBreakerOpen, RampRatio: 0.5, birth: 1, Policies: []PolicyView{{Name: "day", Limit: 10, Used: &used, Remaining: 7, length: 24 * time.Hour}}})
	count := func() (n int) {
		for _, name := range []string{"state", "ramp_ratio", "limit", "remaining", "used", "window_seconds"} {
			one, err := testutil.GatherAndCount(reg, "rate_limiter_"+name)
			if err != nil {
				t.Fatal(err)
			}
			n += one
		}
		return n
	}
	all := len(viewStates) + 6
	if m.view.fade(time.Now().Add(viewMetricsTTL - time.Second)); count() != all {
		t.Errorf("%d series, want %d", count(), all)
	}
	if m.view.fade(time.Now().Add(viewMetricsTTL + time.Second)); count() != 0 {
		t.Errorf("got %d outdated series, want none", count())
	}
	if m.view.show(View{State: StateFlowing, birth: 2}); testutil.ToFloat64(m.view.stateLosses) != 1 || testutil.ToFloat64(m.view.state.WithLabelValues("flowing")) != 1 {
		t.Error("a lost state is not counted, or the new one is not shown")
	}
}
