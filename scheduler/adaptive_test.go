package scheduler

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

func TestSolve_FindsTheRoot(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	last := 0.0
	for i := range 2000 {
		x := math.Pow(10, -8+float64(i)*9.4/2000)
		y := -math.Expm1(-x) - x*math.Exp(-x)
		if x < 1e-3 {
			y = x*x/2 - x*x*x/3
		}
		if got := solve(y); math.Abs(got/x-1) > 1e-4 || got < last {
			t.Fatalf("solve(%v): got %v, want %v", y, got, x)
		}
		last = solve(y)
	}
	for _, y := range []float64{0, -1, math.NaN(), 1, 2, math.Inf(1), rng.Float64() * 1e-300} {
		if x := solve(y); !(x >= 0) {
			t.Errorf("solve(%v): got %v", y, x)
		}
	}
}

func TestInterval_BoundedAndShorterWithReads(t *testing.T) {
	p := newPolicy(t, Adaptive, nil)
	rng := rand.New(rand.NewPCG(2, 2))
	anything := func() float64 { return math.Pow(10, rng.Float64()*14-8) }
	for range 20000 {
		s, price := activity{changes: anything(), reads: anything()}, anything()
		every := p.adaptiveInterval(s, price)
		if every < p.config.MinInterval-1 || every > p.config.MaxInterval+1 {
			t.Fatalf("%+v at %v: %v", s, price, every)
		}
		more, dearer := s, price*(1+rng.Float64())
		more.reads *= 1 + rng.Float64()
		if p.adaptiveInterval(more, price) > every+time.Microsecond || p.adaptiveInterval(s, dearer) < every-time.Microsecond {
			t.Fatalf("%+v at %v: %v; with more reads %v, at a higher price %v", s, price, every, p.adaptiveInterval(more, price), p.adaptiveInterval(s, dearer))
		}
	}
	if got := p.adaptiveInterval(activity{reads: 1}, 1); got != p.config.MaxInterval {
		t.Errorf("interval without changes: got %v", got)
	}
}

// TestInterval_IsOptimal changes the intervals of two entities at random, at the same total cost.
// No change may give more current reads than the computed intervals.
func TestInterval_IsOptimal(t *testing.T) {
	p := newPolicy(t, Adaptive, nil)
	rng := rand.New(rand.NewPCG(3, 3))
	floor := priorReads / (float64(readsFade) / dayNanos)
	for range 2000 {
		a := activity{changes: math.Exp(rng.NormFloat64()), reads: math.Exp(2 * rng.NormFloat64())}
		b := activity{changes: math.Exp(rng.NormFloat64()), reads: math.Exp(2 * rng.NormFloat64())}
		ta, tb := p.adaptiveDays(a, 0.3), p.adaptiveDays(b, 0.3)
		value := func(ta, tb float64) float64 {
			of := func(s activity, t float64) float64 {
				return (s.reads + floor) * -math.Expm1(-s.changes*t) / (s.changes * t)
			}
			return of(a, ta) + of(b, tb)
		}
		// Move some calls per day from one of the two entities to the other.
		calls := (rng.Float64() - 0.5) * 0.2 * math.Min(1/ta, 1/tb)
		oa, ob := 1/(1/ta+calls), 1/(1/tb-calls)
		least, most := p.config.MinInterval.Hours()/24, p.config.MaxInterval.Hours()/24
		if oa < least || ob < least || oa > most || ob > most {
			continue
		}
		if value(oa, ob) > value(ta, tb)+1e-9 {
			t.Fatalf("%+v each %v days and %+v each %v are worth %v; each %v and %v %v", a, ta, b, tb, value(ta, tb), oa, ob, value(oa, ob))
		}
	}
}

// TestChangeRate_ConvergesAtAnyInterval simulates changes at a known rate. The estimated rate must
// be within 25 % of the true rate. At a high rate it must be more accurate than a simple estimate,
// which counts one change for each check that found a change.
func TestChangeRate_ConvergesAtAnyInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for _, rate := range []float64{0.1, 0.5, 1, 2, 3} { // the true rate, in changes a day
		ours, counted, n := 0.0, 0.0, 300
		for range n {
			now := time.Unix(1.8e9, 0)
			c := candidate(1, prefetched.Cold)
			c.State.UpdatedAt = now.Add(-time.Hour)
			hits, passed := 0.0, 0.0
			for range 60 {
				h, _ := updateHistory(c, now)
				c.History = h
				days := 0.5 + rng.Float64()
				if rng.Float64() < -math.Expm1(-rate*days) {
					c.State.UpdatedAt = now.Add(time.Duration(days * dayNanos))
					hits++
				}
				passed += days
				now = now.Add(time.Duration(days * dayNanos))
				c.State.CheckedAt = now.Add(-time.Second)
			}
			ours += changeRate(c.History) / float64(n)
			counted += hits / passed / float64(n)
		}
		t.Logf("changes a day %.1f: found %.2f, counted %.2f", rate, ours, counted)
		if math.Abs(ours/rate-1) > 0.25 {
			t.Errorf("true rate %v a day: got %v", rate, ours)
		}
		if rate >= 1 && math.Abs(ours-rate) > math.Abs(counted-rate) {
			t.Errorf("true rate %v a day: got %v, a plain count has %v", rate, ours, counted)
		}
	}
}

func TestReadRate_ExactAtEvenIntervals(t *testing.T) {
	for _, every := range []time.Duration{time.Hour, 24 * time.Hour, 7 * 24 * time.Hour} {
		c, now, got := candidate(1, prefetched.Cold), time.Unix(1.8e9, 0), activity{}
		for range 1000 {
			c.History.Reads += 5 * float64(every) / dayNanos
			c.History, got = updateHistory(c, now)
			now = now.Add(every)
		}
		if math.Abs(got.reads-5) > 0.05 {
			t.Errorf("claimed every %v: got %v reads a day, want 5", every, got.reads)
		}
	}
}

// TestPrice_ConvergesAndUsesTheBudget simulates 2,000 entities in steps of ten minutes. The price
// is far too high at the start, and the budget halves on day 12. Some days after each of these times
// the demand must match the budget.
func TestPrice_ConvergesAndUsesTheBudget(t *testing.T) {
	for _, start := range []float64{50} {
		rng := rand.New(rand.NewPCG(5, 5))
		p := newPolicy(t, Adaptive, func(c *Config) { c.NotBefore = 0 })
		p.price.price = start
		const n = 2000
		type one struct {
			seen     activity
			due, was float64
		}
		all := make([]one, n)
		for i := range all {
			s := activity{changes: math.Exp(1.5*rng.NormFloat64() - 2), reads: math.Exp(2*rng.NormFloat64() - 2)}
			all[i] = one{s, rng.Float64(), -rng.Float64()}
		}
		demand := func() float64 {
			sum := 0.0
			for i := range all {
				sum += 1 / p.adaptiveDays(all[i].seen, p.price.Value())
			}
			return sum / n
		}
		const step = 1.0 / 144 // length of a step in days: ten minutes
		begin := time.Unix(1.8e9, 0)
		credit := 0.0
		for tick := range 144 * 20 {
			now, budget := float64(tick)*step, 0.7
			if tick > 144*12 {
				budget /= 2
			}
			at := begin.Add(time.Duration(now * dayNanos))
			credit += budget * n * step
			var due []int
			for i := range all {
				if all[i].due <= now {
					due = append(due, i)
				}
			}
			fed := min(len(due), int(credit))
			slices.SortFunc(due, func(a, b int) int { return cmp.Compare(all[a].due, all[b].due) })
			for _, i := range due[:fed] {
				e := &all[i]
				p.price.observe(hashEntity(entity(i)), observation{p, e.seen, now - e.was + 1e-6, at})
				e.was, e.due = now, now+p.adaptiveDays(e.seen, p.price.Value())*(0.95+0.1*rng.Float64())
			}
			unused := math.Floor(credit-float64(fed)) / (budget * n * step)
			credit = math.Mod(credit-float64(fed), 1)
			behind := float64(len(due)-fed) / (budget * n)
			p.price.Adjust(Load{PerDay: budget * n, Unused: unused, Backlog: time.Duration(behind * dayNanos), Share: 1}, at)
			if day := tick % (144 * 12); day%144 == 0 {
				t.Logf("day %.1f: price %.4f, which takes %.2f calls of %.2f, scale %.2f, behind %.1f h", now, p.price.Value(), demand(), budget, p.price.scale, behind*24)
				if d := demand(); day > 144*5 && (d < 0.6*budget || d > 1.3*budget) {
					t.Errorf("from price %v: day %.1f: demand: got %v calls a day, want %v", start, now, d, budget)
				}
				if day > 144*9 && behind > 0.25 {
					t.Errorf("from price %v: got %v days of backlog on day %.1f", start, behind, now)
				}
			}
		}
	}
}
