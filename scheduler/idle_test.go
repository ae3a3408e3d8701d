package scheduler

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store/prefetched"
)

// adaptiveWorld returns a world with one scheduler in the adaptive mode, and a budget of perSecond
// calls a second. Its entities are new and have no reads, as after an import.
func adaptiveWorld(t *testing.T, entities int, perSecond float64, change func(*Config)) (*world, *testScheduler) {
	t.Helper()
	w := newWorld(t, 0)
	c := DefaultConfig()
	c.Mode, c.Cooldown = Adaptive, Cooldown{}
	if change != nil {
		change(&c)
	}
	ctx, kill := context.WithCancel(t.Context())
	schedule, err := NewSchedule(cappedBudget(), map[string]Facet{"character": {Config: c, Cost: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var all []prefetched.RegisteredEntity
	for i := range entities {
		r := prefetched.RegisteredEntity{Entity: entity(i), Tier: prefetched.Cold, Enabled: true}
		r.Due, _ = schedule.FirstDue(r, w.now)
		all = append(all, r)
	}
	if _, err := w.store.RegisterEntities(ctx, all); err != nil {
		t.Fatal(err)
	}
	s, err := NewScheduler("nexon", schedule, Deps{
		Store: w.store, Enqueuer: killableEnqueuer{w, kill}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Capacity: func(context.Context, time.Time) (Capacity, error) {
			return Capacity{PerSecond: perSecond, Share: 1}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w, &testScheduler{s, ctx}
}

// play runs the scheduler for the time `long`. It also stores the results of the refreshes that the
// scheduler requests.
func (w *world) play(s *testScheduler, long time.Duration) {
	w.Helper()
	for end := w.now.Add(long); w.now.Before(end); {
		next, err := s.tick(s.ctx, w.now)
		if err != nil {
			w.Fatal(err)
		}
		switch latest := w.now.Add(maxSleep); {
		case next.IsZero() || next.After(latest):
			w.now = latest
		case next.After(w.now):
			w.now = next
		default:
			w.now = w.now.Add(time.Millisecond)
		}
		w.finishRefreshes()
	}
}

func TestScheduler_UsesIdleBudget(t *testing.T) {
	const least = 2 * time.Minute
	w, s := adaptiveWorld(t, 40, 10, func(c *Config) { c.MinInterval = least })
	w.play(s, 25*time.Minute)
	for i := range 40 {
		asked := w.published[entity(i)]
		if len(asked) < 4 {
			t.Fatalf("entity %d: requests in 25 min: got %d, want at least 4", i, len(asked))
		}
		for j := 1; j < len(asked); j++ {
			// The gap between two requests may be up to 15 % shorter than the interval, for two
			// reasons: the interval varies at random by 5 %, and it is measured in work (see
			// workClock). Work passes 9 % faster than the mean before the evening, because the rate
			// cap is lower in the evening.
			if gap := asked[j].Sub(asked[j-1]); gap < least*85/100 {
				t.Fatalf("entity %d: interval %d: got %v, want at least about %v", i, j, gap, least)
			}
		}
	}
}

func TestPrice_ReachesItsLevelWithinMinutes(t *testing.T) {
	w, s := adaptiveWorld(t, 100, 10, nil)
	w.play(s, 10*time.Minute)
	p := s.policies["character"]
	known := activity{changes: priorChanges / priorWatched}
	if got := p.adaptiveInterval(known, s.price.Value()); got > p.config.MinInterval {
		t.Errorf("interval after 10 min of an idle budget: got %v at price %v, want %v", got, s.price.Value(), p.config.MinInterval)
	}
	w.play(s, time.Hour)
	if got := s.price.Value(); p.adaptiveInterval(known, 30*got) <= p.config.MinInterval {
		t.Errorf("price after another idle hour: got %v, want it to stop where no interval gets shorter", got)
	}
}

// The survey is a pass over the entities that are not due yet. Until it has read all entities, an
// observed entity with a long interval also stands for entities that were not observed yet, so the
// demand counts it several times. Afterwards the demand counts each entity once.
func TestPrice_CountsSurveyedEntitiesOnce(t *testing.T) {
	p := newPolicy(t, Adaptive, nil)
	now := time.Unix(1.8e9, 0)
	for i := range 100 {
		p.price.observe(hashEntity(entity(i)), observation{policy: p, seen: activity{changes: 1, reads: 1}, passed: 1, at: now})
	}
	perDay := 100 / p.adaptiveDays(activity{changes: 1, reads: 1}, 0.1)
	if got, want := p.price.demand(0.1, 0.1), 10*perDay; math.Abs(got/want-1) > 1e-9 {
		t.Errorf("calls a day before a survey: got %v, want %v", got, want)
	}
	for i := range 100 {
		p.price.observeEarly(hashEntity(entity(i)), observation{policy: p, seen: activity{changes: 1, reads: 1}, at: now})
	}
	if got, want := p.price.demand(0.1, 0.1), 10*perDay; math.Abs(got/want-1) > 1e-9 {
		t.Errorf("calls a day during a survey: got %v, want %v", got, want)
	}
	p.price.MarkComplete()
	if got := p.price.demand(0.1, 0.1); math.Abs(got/perDay-1) > 1e-9 {
		t.Errorf("calls a day after a survey: got %v, want %v", got, perDay)
	}
}

// If all intervals were the shortest possible, they would need ten times the budget. So the price
// must stay above the level at which all intervals are the shortest.
func TestPrice_MovesWithFewEntities(t *testing.T) {
	const calls = 4.0 / 60 // calls a second: enough to refresh 40 entities every 10 min
	w, s := adaptiveWorld(t, 40, calls, func(c *Config) { c.MinInterval = time.Minute })
	w.play(s, 3*time.Hour)
	begin := w.now
	w.play(s, 2*time.Hour)
	fed := 0
	for _, asked := range w.published {
		for _, at := range asked {
			if !at.Before(begin) {
				fed++
			}
		}
	}
	p := s.policies["character"]
	if most := calls * 7200; float64(fed) < 0.8*most {
		t.Errorf("calls in 2 h: got %d, want about %v", fed, most)
	}
	wanted := 40 * float64(24*time.Hour) / float64(p.adaptiveInterval(activity{changes: 0.25}, s.price.Value()))
	if wanted > 3*calls*86400 {
		t.Errorf("demand at the price %v: got %v, want about %v", s.price.Value(), wanted, calls*86400)
	}
}

// At a high price the entities get due times that are days away. Then the price falls, because no
// entity is due. A tick must find these entities and make them due earlier.
func TestScheduler_BringsForwardAfterPriceFall(t *testing.T) {
	w, s := adaptiveWorld(t, 30, 10, nil)
	var reads []prefetched.EntityReads
	for i := range 30 {
		reads = append(reads, prefetched.EntityReads{Entity: entity(i), Count: 1, At: w.now, Due: w.now, Tier: prefetched.Cold})
	}
	if err := w.store.ObserveReads(t.Context(), reads, nil); err != nil {
		t.Fatal(err)
	}
	_, err := w.store.ClaimEntities(t.Context(), "nexon", w.now.Add(25*time.Hour), 100, time.Minute, nil, func(c prefetched.Candidate) prefetched.Decision {
		h := c.History
		h.ClaimedAt = w.now
		return prefetched.Decision{Due: w.now.Add(7 * 24 * time.Hour), Tier: c.Tier, History: h}
	})
	if err != nil {
		t.Fatal(err)
	}
	w.play(s, 90*time.Minute)
	for i := range 30 {
		if got := len(w.published[entity(i)]); got < 1 {
			t.Fatalf("entity %d: requests in 90 min of an idle budget: got %d, want at least 1", i, got)
		}
	}
}

// If the scheduler has no idle budget, it makes no entity due earlier.
func TestScheduler_BringsNothingForwardWithoutBudget(t *testing.T) {
	w, s := adaptiveWorld(t, 50, 0, nil)
	before, err := w.store.NextEntityTime(t.Context(), "nexon")
	if err != nil {
		t.Fatal(err)
	}
	w.play(s, 10*time.Minute)
	after, err := w.store.NextEntityTime(t.Context(), "nexon")
	if err != nil {
		t.Fatal(err)
	}
	if !after.Equal(before) {
		t.Errorf("next due time without a budget: got %v, want %v", after, before)
	}
}

// An entity that the rule Active excludes keeps its due time, however often the survey (a pass over
// the entities that are not due yet) reads it.
func TestScheduler_KeepsHeldEntities(t *testing.T) {
	w, s := adaptiveWorld(t, 3, 10, func(c *Config) { c.Active.Params = []string{"linked"} })
	before, err := w.store.NextEntityTime(t.Context(), "nexon")
	if err != nil {
		t.Fatal(err)
	}
	w.play(s, 10*time.Minute)
	after, err := w.store.NextEntityTime(t.Context(), "nexon")
	if err != nil {
		t.Fatal(err)
	}
	if before.After(w.now) && !after.Equal(before) {
		t.Errorf("next due time of inactive entities: got %v, want %v", after, before)
	}
}

// TestPolicy_SpreadsSecondFetches claims a thousand new entities within one second. All of them
// have the same interval, but their next due times must be spread over it.
func TestPolicy_SpreadsSecondFetches(t *testing.T) {
	p := newPolicy(t, Adaptive, func(c *Config) { c.NotBefore = 0 })
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	const n = 1000
	tenths := [11]int{}
	for i := range n {
		m := p.Next(candidate(i, prefetched.Cold), now.Add(time.Duration(i)*time.Millisecond))
		if m.Due.Sub(now) < p.config.MinInterval*85/100 {
			t.Errorf("entity %d: due after %v, want at least about %v", i, m.Due.Sub(now), p.config.MinInterval)
		}
		tenths[min(int(10*m.Due.Sub(now)/p.config.MaxInterval), 10)]++
	}
	for i, got := range tenths[:10] {
		if got < n/20 || got > n/5 {
			t.Errorf("entities due in tenth %d of the interval: got %d of %d, want about a tenth", i, got, n)
		}
	}
}
