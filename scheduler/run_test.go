package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// world is what schedulers run in: a store, and a door behind which everything is
// published, covered for a minute, and refreshed after a while, by a clock of its own.
type world struct {
	*testing.T
	store   *sqlite.Store
	now     time.Time
	every   map[schemas.Entity][]time.Time // it was published
	waiting map[schemas.Entity]time.Time   // when its refresh comes
	number  int64
	dies    func() bool // asked before each publish: whether the one who asks is killed
}

func newWorld(t *testing.T, entities int) *world {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w := &world{
		T: t, store: s, now: time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC),
		every: map[schemas.Entity][]time.Time{}, waiting: map[schemas.Entity]time.Time{}, number: 1, dies: func() bool { return false },
	}
	p := newPolicy(t, Tiers, nil)
	var all []store.RegisteredEntity
	for i := range entities {
		r := store.RegisteredEntity{Entity: entity(i), Tier: store.Hot, Enabled: true, History: store.History{Reads: 1000}}
		r.Due = p.FirstDue(r.Entity, r.Tier, w.now)
		all = append(all, r)
	}
	if _, err := s.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	return w
}

// failingStore is the door of one scheduler, which may be killed as it asks.
type failingStore struct {
	*world
	kill context.CancelFunc
}

func (k failingStore) Prefetch(ctx context.Context, asks []store.ClaimedRequest) []store.ClaimedRequest {
	for i, a := range asks {
		if ctx.Err() != nil || k.dies() {
			k.kill()
			return asks[i:]
		}
		if all := k.every[a.Entity]; len(all) == 0 || k.now.Sub(all[len(all)-1]) >= time.Minute { // no lock covers it
			k.every[a.Entity] = append(all, k.now)
			k.waiting[a.Entity] = k.now.Add(20 * time.Second)
		}
	}
	return nil
}

// work stores what was refreshed by now.
func (w *world) work() {
	w.Helper()
	var writes []store.Write
	for e, at := range w.waiting {
		if at.After(w.now) {
			continue
		}
		delete(w.waiting, e)
		w.number++
		writes = append(writes, store.Write{
			Entity: e, Version: w.number, CheckedAt: at,
			Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
		})
	}
	if _, err := w.store.Write(w.Context(), writes); err != nil {
		w.Fatal(err)
	}
}

// testScheduler is a scheduler, until it is killed.
type testScheduler struct {
	*Scheduler
	ctx context.Context //nolint:containedctx // it ends with its own
}

func (w *world) scheduler() *testScheduler {
	w.Helper()
	ctx, kill := context.WithCancel(w.Context())
	c := DefaultConfig()
	c.Mode, c.TimeZone, c.NotBefore = Tiers, "Asia/Seoul", 120
	schedule, err := NewSchedule(DefaultBudgetConfig(), map[string]Facet{"character": {Config: c, Cost: 1}})
	if err != nil {
		w.Fatal(err)
	}
	s, err := NewScheduler("nexon", schedule, Deps{
		Store: w.store, Enqueuer: failingStore{w, kill}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Capacity: func(context.Context, time.Time) (Capacity, error) { return Capacity{PerSecond: 250, Share: 0.5}, nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	return &testScheduler{s, ctx}
}

// Two schedulers, each of which is killed now and then in the midst of its asking, and
// replaced after a while.
func TestScheduler_SurvivesKills(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			w := newWorld(t, 600)
			deaths := 0
			w.dies = func() bool {
				if rng.IntN(100) > 0 {
					return false
				}
				deaths++
				return true
			}
			all := []*testScheduler{w.scheduler(), w.scheduler()}
			away := [2]int{}
			end := w.now.Add(5 * time.Hour)
			for ; w.now.Before(end); w.now = w.now.Add(2 * time.Second) {
				for i, s := range all {
					if s.ctx.Err() != nil {
						if away[i]++; away[i] > 10 { // another comes
							all[i], away[i] = w.scheduler(), 0
						}
						continue
					}
					if _, err := s.tick(s.ctx, w.now); err != nil && s.ctx.Err() == nil {
						t.Fatal(err)
					}
				}
				w.work()
			}
			if deaths < 10 {
				t.Fatalf("only %d deaths", deaths)
			}
			begin := end.Add(-5 * time.Hour)
			for i := range 600 {
				asked := w.every[entity(i)]
				if len(asked) < 4 || len(asked) > 6 {
					t.Errorf("entity %d was asked for %d times in 5 h", i, len(asked))
				}
				last := begin
				for _, at := range append(asked, end) {
					if gap := at.Sub(last); gap > 100*time.Minute {
						t.Errorf("entity %d was not asked for, for %v", i, gap)
					} else if gap < 20*time.Minute && last != begin && at != end {
						t.Errorf("entity %d was asked for again after %v", i, gap)
					}
					last = at
				}
			}
		})
	}
}

func TestScheduler_SharesPrice(t *testing.T) {
	w := newWorld(t, 10)
	if _, err := w.store.SetPrice(t.Context(), "nexon", 7, w.now, time.Minute); err != nil {
		t.Fatal(err)
	}
	first, second := w.scheduler(), w.scheduler()
	tick := func(s *testScheduler) {
		t.Helper()
		if _, err := s.tick(s.ctx, w.now); err != nil {
			t.Fatal(err)
		}
	}
	tick(first)
	if got := first.price.Value(); got != 7 {
		t.Errorf("one that starts has the price %v, not the others'", got)
	}
	for i := range minSample { // so that the first of them has something to go by
		first.price.observe(hashEntity(entity(i)), observation{policy: first.policies["character"], seen: activity{changes: 1, reads: 100}, passed: 1, at: w.now})
	}
	w.now = w.now.Add(2 * priceInterval)
	tick(first)
	if first.price.Value() == 7 {
		t.Fatal("nobody moved the price")
	}
	w.now = w.now.Add(time.Second)
	tick(second)
	if second.price.Value() != first.price.Value() {
		t.Errorf("the prices are %v and %v", first.price.Value(), second.price.Value())
	}
}

// hung is a store that answers a claim after a while, and knows whose it is by then.
type hung struct {
	Store
	while time.Duration
	until time.Time
	asked int
}

func (h *hung) TakeOverClaim(context.Context, string, time.Time, time.Duration) (c store.Claim, found bool, err error) {
	return c, false, nil
}

func (h *hung) ClaimEntities(_ context.Context, source string, now time.Time, _ int, lease time.Duration, _ func(string) bool, _ func(store.Candidate) store.Decision) (store.Claim, error) {
	h.until = time.Now().Add(lease)
	<-time.After(h.while)
	c := store.NewClaim(source, now)
	c.Requests = []store.ClaimedRequest{{Entity: entity(0)}}
	return c, nil
}

func (h *hung) RenewClaim(context.Context, string, time.Time) (bool, error) {
	return time.Now().Before(h.until), nil
}

func (h *hung) Price(context.Context, string) (price float64, at time.Time, err error) {
	return 1, at, nil
}

func (h *hung) SetPrice(context.Context, string, float64, time.Time, time.Duration) (bool, error) {
	return true, nil
}

func (h *hung) FinishClaim(context.Context, string) error { return nil }

func (h *hung) NextEntityTime(context.Context, string) (due time.Time, err error) { return due, nil }

func (h *hung) EntitiesDueAfter(context.Context, string, time.Time, int, func(string) bool) ([]store.Candidate, error) {
	return nil, nil
}

func (h *hung) BringForward(context.Context, []store.DueTime) error { return nil }

func (h *hung) Prefetch(_ context.Context, asks []store.ClaimedRequest) []store.ClaimedRequest {
	h.asked += len(asks)
	return nil
}

func TestScheduler_StopsAfterLosingClaim(t *testing.T) {
	for while, want := range map[time.Duration]int{0: 1, lease / 2: 1, lease + time.Second: 0} {
		synctest.Test(t, func(t *testing.T) {
			h := &hung{while: while}
			schedule, err := NewSchedule(DefaultBudgetConfig(), map[string]Facet{"character": {Config: DefaultConfig(), Cost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewScheduler("nexon", schedule, Deps{
				Store: h, Enqueuer: h, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
				Capacity: func(context.Context, time.Time) (Capacity, error) { return Capacity{PerSecond: 250, Share: 1}, nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first finds how much there is to spend
				if _, err := s.tick(t.Context(), time.Now()); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Second)
			}
			if h.asked != want {
				t.Errorf("%d were asked for by who hung for %v, want %d", h.asked, while, want)
			}
		})
	}
}

// ticks lets a scheduler tick for so long, as it says, and returns how often it did.
func (w *world) ticks(s *testScheduler, long time.Duration) (n int) {
	w.Helper()
	for end := w.now.Add(long); w.now.Before(end); n++ {
		if n > 10_000 {
			w.Fatalf("it ticks without a pause, at %v", w.now)
		}
		next, err := s.tick(s.ctx, w.now)
		if err != nil {
			w.Fatal(err)
		}
		if latest := w.now.Add(maxSleep); next.IsZero() || next.After(latest) {
			next = latest
		}
		w.now = next
	}
	return n
}

func TestScheduler_SleepsWhenNothingIsDue(t *testing.T) {
	w := newWorld(t, 1)
	s := w.scheduler()
	w.ticks(s, time.Minute)
	if n := w.ticks(s, 10*time.Minute); n > 62 {
		t.Errorf("%d looks in ten minutes", n)
	}
	if got := s.idleBudget.Fraction(); got < 0.9 {
		t.Errorf("%v of the budget is unused where nothing is due", got)
	}
}

// Of two facets, entities of the dear one never come due: what is cheap is fed as fast as
// the budget goes, and all that is due in the end.
func TestScheduler_ExpensiveFacetStarvesNone(t *testing.T) {
	const n = 6000
	w := newWorld(t, n)
	all, err := w.store.Entities(t.Context(), store.EntityFilter{}, schemas.Entity{}, n)
	if err != nil {
		t.Fatal(err)
	}
	w.now = all[0].Due
	for _, r := range all {
		if r.Due.After(w.now) {
			w.now = r.Due // when all of them are due
		}
	}
	w.now = w.now.Add(time.Minute)
	s := w.scheduler()
	s.Schedule.cost["dear"], s.Schedule.maxCost, s.mean = 43, 43, 43
	w.ticks(s, 60*time.Second)
	fed := len(w.every)
	// Half of 250/s, as of one of two; the first look finds how much there is to spend.
	if fed < 125*50 && fed < n {
		t.Errorf("%d were fed in a minute", fed)
	}
	if used := 1 - s.idleBudget.Fraction(); fed < n && used < 0.9 {
		t.Errorf("%v of the budget is taken for used", used)
	}
}
