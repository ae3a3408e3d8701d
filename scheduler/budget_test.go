package scheduler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// cappedBudget returns the rate caps of the built-in source: 150 calls a second from 19:00 to
// midnight, and 250 otherwise.
func cappedBudget() BudgetConfig {
	return BudgetConfig{RateCaps: []RateCap{{From: 19, To: 24, Rate: 150}, {Rate: 250}}}
}

func newBudget(t *testing.T) *Budget {
	t.Helper()
	s := cappedBudget()
	s.TimeZone = "Asia/Seoul"
	b, err := NewBudget(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBudget_HoldsInEveryWindow enqueues as many calls as the budget allows, at irregular times and
// with long pauses. The simulated workers read the topic at the rate of the LOW lane. In a period
// of any length, at most rate × length calls plus one burst may be enqueued. The topic may contain at
// most the work of one minute.
func TestBudget_HoldsInEveryWindow(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := newBudget(t)
		now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
		begin := now
		cost := []float64{1, 2, 7}[seed%3]
		rate := []float64{200, 40.0 / 60, 0.01, 1000}[seed%4]
		allowed := math.Min(rate, 250)
		waiting, fed, paused := 0.0, 0.0, 0.0
		type feed struct {
			at    time.Time
			calls float64
		}
		var feeds []feed
		for now.Sub(begin) < 8*time.Hour && len(feeds) < 3000 {
			n, again := b.Allowance(Capacity{PerSecond: rate, Queued: waiting, Cost: cost, Share: 1}, now)
			if !again.After(now) || again.Sub(now) > time.Hour+1 {
				t.Fatalf("seed %d: at %v: got the retry time %v, want a later one", seed, now, again)
			}
			calls := float64(n) * cost
			b.Spend(calls)
			waiting += calls
			fed += calls
			if waiting > max(allowed*60, 2*cost)+1e-6 {
				t.Fatalf("seed %d: got %v queued calls at %v calls a second", seed, waiting, allowed)
			}
			feeds = append(feeds, feed{now, calls})
			pause := time.Duration(0)
			if rng.IntN(400) == 0 {
				pause = time.Duration(rng.Int64N(int64(time.Hour)))
				paused += pause.Seconds()
			}
			next := again.Add(pause + time.Duration(rng.Int64N(int64(time.Second))))
			waiting = math.Max(0, waiting-allowed*next.Sub(now).Seconds())
			now = next
		}
		stock := math.Max(allowed*5, cost)
		for i := range feeds {
			sum := 0.0
			for _, f := range feeds[i:min(len(feeds), i+200)] {
				sum += f.calls
				if most := allowed*f.at.Sub(feeds[i].at).Seconds() + stock + cost; sum > most+1e-6 {
					t.Fatalf("seed %d: got %v calls in %v, want at most rate and burst", seed, sum, f.at.Sub(feeds[i].at))
				}
			}
		}
		if most := allowed * (now.Sub(begin).Seconds() - paused); fed < 0.9*most-stock-2*cost {
			t.Errorf("seed %d: calls: got %.0f, want about %.0f", seed, fed, most)
		}
	}
}

func TestBudget_StopsWithLag(t *testing.T) {
	for _, want := range []struct {
		lag  time.Duration
		rate float64
	}{{0, 200}, {5 * time.Minute, 200}, {10 * time.Minute, 100}, {15 * time.Minute, 0}, {time.Hour, 0}} {
		b := newBudget(t)
		got := b.Rate(Capacity{PerSecond: 200, Lag: want.lag, Cost: 1, Share: 1}, time.Date(2026, 5, 5, 10, 0, 0, 0, seoul))
		if math.Abs(got-want.rate) > 1e-9 {
			t.Errorf("lag %v: rate: got %v, want %v", want.lag, got, want.rate)
		}
	}
}

func TestRateCaps_UseTheSourceTimeZone(t *testing.T) {
	for hour := range 24 {
		want := 250.0
		if hour >= 19 {
			want = 150
		}
		b := newBudget(t)
		if got := b.Rate(Capacity{PerSecond: 1000, Share: 1}, time.Date(2026, 5, 5, hour, 59, 59, 0, seoul).UTC()); got != want {
			t.Errorf("hour %d: rate: got %v", hour, got)
		}
	}
}

func TestBudget_BoundsBurstAfterPause(t *testing.T) {
	b := newBudget(t)
	now := time.Date(2026, 5, 5, 3, 0, 0, 0, seoul)
	b.Allowance(Capacity{PerSecond: 200, Cost: 1, Share: 1}, now)
	n, _ := b.Allowance(Capacity{PerSecond: 200, Cost: 1, Share: 1}, now.Add(6*time.Hour))
	if n != 1000 {
		t.Errorf("after six hours: got a burst of %d, want 5 s of work", n)
	}
}

func TestBudget_ZeroRateAllowsNothing(t *testing.T) {
	for _, r := range []Capacity{{}, {PerSecond: math.NaN(), Cost: 1}, {PerSecond: -5, Cost: 1, Share: 1}, {PerSecond: 100, Queued: 1e9, Cost: 1, Share: 1}, {PerSecond: 100, Lag: 20 * time.Minute, Cost: 1, Share: 1}, {PerSecond: 100, Cost: 1}} {
		b := newBudget(t)
		now := time.Date(2026, 5, 5, 3, 0, 0, 0, seoul)
		for range 10 {
			n, again := b.Allowance(r, now)
			if n != 0 || !again.After(now) {
				t.Errorf("%+v: got an allowance of %d, retry at %v", r, n, again)
			}
			now = again
		}
	}
}

func TestBudget_SharedBySchedulers(t *testing.T) {
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	for _, many := range []int{1, 3, 10} {
		fed, waiting := 0.0, 0.0
		all := make([]*Budget, many)
		for i := range all {
			b, err := NewBudget(cappedBudget())
			if err != nil {
				t.Fatal(err)
			}
			all[i] = b
		}
		for second := range 120 {
			for _, b := range all {
				n, _ := b.Allowance(Capacity{PerSecond: 1000, Queued: waiting, Cost: 1, Share: 1 / float64(many)}, now.Add(time.Duration(second)*time.Second))
				b.Spend(float64(n))
				fed += float64(n)
			}
		}
		if fed < 0.95*119*250 || fed > 119*250+1 {
			t.Errorf("%d schedulers: got %.0f calls in 119 s at 250 a second", many, fed)
		}
	}
}

func TestSchedule_ShowsRateCapAndReadyTime(t *testing.T) {
	waiting := DefaultConfig()
	waiting.Mode, waiting.NotBefore = Tiers, 120
	ready := DefaultConfig()
	ready.Mode = Tiers
	spending := BudgetConfig{RateCaps: []RateCap{{From: 19, To: 24, Rate: 150}, {From: 0, To: 3, Rate: 0}}}
	s, err := NewSchedule(spending, map[string]Facet{"waiting": {Config: waiting, Cost: 1}, "ready": {Config: ready, Cost: 1}, "off": {Config: DefaultConfig(), Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	night := time.Date(2026, 1, 27, 1, 0, 0, 0, time.UTC)
	// Keys: hours after 01:00. Values: the rate cap at that hour, and whether there is one.
	for hour, want := range map[int]string{0: "0 true", 4: "1e+06 false", 19: "150 true"} {
		if rate, there := s.RateCap(night.Add(time.Duration(hour) * time.Hour)); fmt.Sprint(rate, there) != want {
			t.Errorf("after %d hours: got %v %v, want %s", hour, rate, there, want)
		}
	}
	if got := s.ContentReadyAt("waiting", night); !got.Equal(night.Add(time.Hour)) {
		t.Errorf("got %v, want %v", got, night.Add(time.Hour))
	}
	for facet, at := range map[string]time.Time{"waiting": night.Add(2 * time.Hour), "ready": night, "off": night, "none": night} {
		if got := s.ContentReadyAt(facet, at); !got.IsZero() {
			t.Errorf("%s: ready time: got %v", facet, got)
		}
	}
}
