package limiter

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source/announced"
)

// spentUnits records the units used at the upstream by arrival time.
type spentUnits struct {
	at    []time.Time // arrival times, one entry per unit
	calls int
}

// use returns an upstream whose calls cost this number of units each. If announces is true, each
// response reports the cost.
func (s *spentUnits) use(units int, announces bool) upstream {
	return func(c atUpstream) answered {
		for range units {
			s.at = append(s.at, c.at)
		}
		s.calls++
		a := answered{status: 200, takes: 30 * ms}
		if announces {
			a.notices = []announced.Notice{costs("points", units)}
		}
		return a
	}
}

// callsOf returns how many calls fit into a window's limit. Before a call's response the call's
// estimated cost counts, afterwards its actual cost. The last call of a window therefore needs room
// for its estimated cost.
func callsOf(limit, estimate, actual int, window time.Duration) float64 {
	const onItsWay = 100 * ms // time from the permit until the actual cost is in Redis
	if estimate == actual {
		return float64(limit / actual)
	}
	n := float64(limit-estimate)/float64(actual) + 1
	for range 20 { // iterate, because the units held for calls in flight depend on the result n
		held := max(0, n*float64(onItsWay)/float64(window)) * float64(estimate-actual)
		n = max(1, (float64(limit-estimate)-held)/float64(actual)+1)
	}
	return min(n, float64(window)/float64(onItsWay)*float64(limit/estimate))
}

// Under constant demand a window must be used to at least 95 %, whether calls are cheap or expensive
// and whether responses refund units or not. Its limit must never be exceeded.
func TestWindow_UsesBudgetAtAnyCost(t *testing.T) {
	const limit, window, windows = 500, 10 * time.Second, 4
	for _, c := range []struct{ estimate, actual int }{
		{5, 5}, {20, 20}, {100, 100}, {240, 240}, {300, 300}, {400, 400}, {500, 500}, {20, 3}, {100, 40}, {400, 10}, {500, 1},
	} {
		t.Run(fmt.Sprintf("%d of which %d are used", c.estimate, c.actual), func(t *testing.T) {
			t.Parallel()
			var spent spentUnits
			config := scopedConfig(Policy{Name: "points", Unit: "points", Limit: limit, Window: Window(window)})
			config.Costs = map[string]CostRange{"points": {c.estimate, c.estimate}}
			if c.estimate != c.actual {
				config.CostReported = []string{"points"}
			}
			inCallers(t, 1, 2, config, spent.use(c.actual, c.actual != c.estimate), func(f *callers) {
				call := Call{Endpoint: "f/d", Key: "k", Costs: map[string]int{"points": c.estimate}}
				for _, m := range f.members {
					f.wait(m, 13, schemas.Low, call)
				}
				f.passed(2 * window)
				before := read(f, &spent.calls)
				f.passed(windows * window)
				reach := window + permitLife + config.Jitter
				got := float64(read(f, &spent.calls) - before)
				if want := 0.95 * callsOf(limit, c.estimate, c.actual, window) * windows * float64(window) / float64(reach); got < want {
					t.Errorf("got %.0f calls in %d windows, want at least %.0f", got, windows, want)
				}
				if most := mostWithin(read(f, &spent.at), window); most > limit {
					t.Errorf("got %d units within %v, want at most %d", most, window, limit)
				}
			})
		})
	}
}

// points returns a configuration with one window of `limit` units. One call costs `costs` units.
func points(limit int, window time.Duration, costs CostRange) Config {
	config := scopedConfig(Policy{Name: "points", Unit: "points", Limit: limit, Window: Window(window)})
	config.Costs = map[string]CostRange{"points": costs}
	return config
}

func costing(units int) Call {
	return Call{Endpoint: "f/d", Key: "k", Costs: map[string]int{"points": units}}
}

// A paced window must grant at one moment at most the units of its burst plus the units of one call.
func TestWindow_PacesUnits(t *testing.T) {
	const limit, window = 1000, 10 * time.Second
	for _, dearest := range []int{5, 100} {
		t.Run(fmt.Sprint("dearest ", dearest), func(t *testing.T) {
			t.Parallel()
			var spent spentUnits
			inCallers(t, 1, 2, points(limit, window, CostRange{1, dearest}), spent.use(dearest, false), func(f *callers) {
				for _, m := range f.members {
					f.wait(m, 13, schemas.Low, costing(dearest))
				}
				f.passed(2 * window)
				const span = window / 10
				burst := max(limit/100, min(dearest, limit/50))
				got, want := mostWithin(read(f, &spent.at), span), limit/10+burst+dearest+int(limit*(permitLife+10*ms)/window)
				if got > want {
					t.Errorf("got %d units within %v, want at most %d", got, span, want)
				}
			})
		})
	}
}

// After a loss of state a window's limit still holds, and calls resume before a whole window has
// passed.
func TestWindow_HoldsAfterLostState(t *testing.T) {
	const limit, window = 500, 10 * time.Second
	eachSeed(t, 1, func(t *testing.T, seed uint64) {
		var spent spentUnits
		inCallers(t, seed, 2, points(limit, window, CostRange{5, 60}), func(c atUpstream) answered {
			return spent.use(c.call.Costs["points"], false)(c)
		}, func(f *callers) {
			for _, m := range f.members {
				f.wait(m, 3, schemas.Low, costing(60))
				f.wait(m, 3, schemas.Low, costing(20))
				f.wait(m, 3, schemas.High, costing(5))
			}
			for range 5 {
				f.passed(f.span(window, 2*window))
				f.flushed()
				before := read(f, &spent.calls)
				f.passed(window / 3)
				if read(f, &spent.calls) == before {
					t.Errorf("got no call within %v after the state was lost", window/3)
				}
			}
			if most := mostWithin(read(f, &spent.at), window); most > limit {
				t.Errorf("got %d units within %v, want at most %d", most, window, limit)
			}
		})
	})
}

// Cheap calls use all units of a window. Calls that cost up to 2 % of the limit must get their turn
// nevertheless.
func TestWindow_ServesExpensiveCallsBesideCheapOnes(t *testing.T) {
	for limit, cost := range map[int]int{900: 5, 200: 4} {
		var spent spentUnits
		dear := 0
		inCallers(t, 1, 2, points(limit, time.Minute, CostRange{1, cost}), func(c atUpstream) answered {
			if c.call.Costs["points"] == cost {
				dear++
			}
			return spent.use(c.call.Costs["points"], false)(c)
		}, func(f *callers) {
			f.wait(f.members[0], 20, schemas.Low, costing(1))
			f.passed(70 * time.Second) // cheap calls use the whole window
			f.wait(f.members[1], 1, schemas.Low, costing(cost))
			f.passed(time.Minute)
			if got := read(f, &dear); got < 10 {
				t.Errorf("limit %d: got %d calls of %d units in a minute beside cheap ones, want at least 10", limit, got, cost)
			}
		})
	}
}

// LOW uses all units of a window except HIGH's reserve.
func TestWindow_KeepsReserveForHigh(t *testing.T) {
	const limit, kept, window = 500, 100, 10 * time.Second
	var spent spentUnits
	config := points(limit, window, CostRange{20, 20})
	config.Policies[0].HighReserve = Reserve{Calls: kept}
	inCallers(t, 1, 2, config, spent.use(20, false), func(f *callers) {
		for _, m := range f.members {
			f.wait(m, 10, schemas.Low, costing(20))
		}
		f.passed(3 * window)
		if most := mostWithin(read(f, &spent.at), window); most > limit-kept || most < (limit-kept)*95/100 {
			t.Errorf("got %d units of LOW within %v, want %d", most, window, limit-kept)
		}
		start := time.Now()
		f.one(f.members[0], schemas.High, costing(20))
		if got := time.Since(start); got > time.Second {
			t.Errorf("got HIGH's permit after %v, want it from the reserve at once", got)
		}
	})
}

// The log of a window must not grow with the number of calls, but have at most maxLogEntries entries.
func TestWindow_BoundsItsLog(t *testing.T) {
	var spent spentUnits
	inCallers(t, 1, 1, points(1000, 10*time.Second, CostRange{1, 1}), spent.use(1, false), func(f *callers) {
		f.wait(f.members[0], 20, schemas.Low, costing(1))
		f.passed(20 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		text, err := f.redis.Get("quota:{s}:b:points:")
		if got, want := len(text), 49+32*(maxLogEntries+5); err != nil || got > want {
			t.Errorf("got a log of %d bytes (%v), want at most %d", got, err, want)
		}
		if got := mostWithin(spent.at, 10*time.Second); got > 1000 || got < 900 {
			t.Errorf("got %d units within the window of 1000", got)
		}
	})
}

// The view must show the remaining units correctly, even if one call uses most of the window.
func TestWindow_ShowsWhatIsLeft(t *testing.T) {
	var spent spentUnits
	inCallers(t, 1, 1, points(500, 10*time.Second, CostRange{400, 400}), spent.use(400, false), func(f *callers) {
		f.wait(f.members[0], 2, schemas.Low, costing(400))
		for range 20 {
			f.passed(time.Second)
			l := f.members[0].limiter
			l.mu.Lock()
			views := l.alloc.buckets.views(time.Now(), &l.alloc.clock)
			l.mu.Unlock()
			if len(views) != 1 || views[0].Remaining == nil {
				t.Fatalf("got %+v, want the remaining units", views)
			}
		}
	})
}

// A quota is rejected if it could never admit the most expensive call.
func TestQuota_RefusesCallsThatCanNeverGo(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Policy)
		want   string
	}{
		"above the limit":  {func(p *Policy) { p.Limit = 90 }, "the most expensive call costs 100 units, but only 90 can be used"},
		"above the target": {func(p *Policy) { p.Target = 99 }, "the most expensive call costs 100 units, but only 99 can be used"},
		"above LOW's":      {func(p *Policy) { p.HighReserve = Reserve{Calls: 401} }, "LOW can use 99 of 500 units"},
		"above a bucket":   {func(p *Policy) { p.Limit, p.Window, p.Restore = 90, 0, 10 }, "the most expensive call costs 100 units, but only 90 can be used"},
		"restored at once": {func(p *Policy) { p.Limit, p.Window, p.Restore = 110, 0, 1100 }, "units are restored between a permit and the arrival of its call"},
		"of the limit":     {func(p *Policy) { p.Limit = 100 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := points(500, 10*time.Second, CostRange{1, 100})
			c.change(&config.Policies[0])
			_, err := NewQuota(config)
			if got := fmt.Sprint(err); (c.want == "") != (err == nil) || !strings.Contains(got, c.want) && err != nil {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestQuota_MultipliesByHosts(t *testing.T) {
	config := points(500, 10*time.Second, CostRange{1, 1})
	config.Policies[0].Scope, config.Hosts = "{host}", 2
	quota, err := NewQuota(config)
	if err != nil {
		t.Fatal(err)
	}
	if got := quota.MaxCalls(schemas.Low, time.Minute); got != 2*2966 {
		t.Errorf("calls a minute on two hosts: got %.0f, want %d", got, 2*2966)
	}
}

// `config check` prints the smallest and the largest number of calls in a window as whole numbers.
func TestQuota_BoundsCountWholeCalls(t *testing.T) {
	for _, c := range []struct {
		cost   int
		units  float64 // Bounds must return at most these units per window, and at least 97 % of them
		minute float64 // MaxCalls must return exactly this number of calls per minute
	}{{1, 500, 2966}, {100, 500, 29}, {300, 300, 5}, {400, 400, 5}} {
		quota, err := NewQuota(points(500, 10*time.Second, CostRange{c.cost, c.cost}))
		if err != nil {
			t.Fatal(err)
		}
		if got := quota.Bounds()[0].PerWindow; got > c.units || got < 0.97*c.units {
			t.Errorf("cost %d: got %.1f units a window, want up to %.0f", c.cost, got, c.units)
		}
		if got := quota.MaxCalls(schemas.Low, time.Minute); got != c.minute {
			t.Errorf("cost %d: got %.0f calls a minute, want %.0f", c.cost, got, c.minute)
		}
	}
}
