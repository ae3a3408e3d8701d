package scheduler

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

// world has a store, a simulated clock and a simulated pipeline. The pipeline coalesces requests of
// an entity within a minute, and refreshes the entity 20 s after its request.
type world struct {
	*testing.T
	store     *sqlite.Store
	now       time.Time
	published map[schemas.Entity][]time.Time // times at which requests of an entity were published
	refreshAt map[schemas.Entity]time.Time   // for each entity in flight: the time at which it is refreshed
	number    int64
	killed    func() bool // called before each publication; if it returns true, the scheduler is killed before it
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
		published: map[schemas.Entity][]time.Time{}, refreshAt: map[schemas.Entity]time.Time{}, number: 1, killed: func() bool { return false },
	}
	p := newPolicy(t, Tiers, nil)
	var all []prefetched.RegisteredEntity
	for i := range entities {
		r := prefetched.RegisteredEntity{Entity: entity(i), Tier: prefetched.Hot, Enabled: true, History: prefetched.History{Reads: 1000}}
		r.Due = p.FirstDue(r.Entity, r.Tier, w.now)
		all = append(all, r)
	}
	if _, err := s.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	return w
}

// killableEnqueuer publishes requests in the world. It kills its scheduler if world.killed returns
// true.
type killableEnqueuer struct {
	*world
	kill context.CancelFunc
}

func (k killableEnqueuer) Prefetch(ctx context.Context, requests []prefetched.ClaimedRequest) []prefetched.ClaimedRequest {
	for i, a := range requests {
		if ctx.Err() != nil || k.killed() {
			k.kill()
			return requests[i:]
		}
		if all := k.published[a.Entity]; len(all) == 0 || k.now.Sub(all[len(all)-1]) >= time.Minute { // requests of an entity within a minute are coalesced
			k.published[a.Entity] = append(all, k.now)
			k.refreshAt[a.Entity] = k.now.Add(20 * time.Second)
		}
	}
	return nil
}

// finishRefreshes stores a new snapshot for each entity whose time in refreshAt is not in the
// future.
func (w *world) finishRefreshes() {
	w.Helper()
	var writes []store.Write
	for e, at := range w.refreshAt {
		if at.After(w.now) {
			continue
		}
		delete(w.refreshAt, e)
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

// testScheduler is a scheduler that a test can kill.
type testScheduler struct {
	*Scheduler
	ctx context.Context //nolint:containedctx // ends when the test kills the scheduler
}

func (w *world) scheduler() *testScheduler {
	w.Helper()
	ctx, kill := context.WithCancel(w.Context())
	c := DefaultConfig()
	c.Mode, c.TimeZone, c.NotBefore = Tiers, "Asia/Seoul", 120
	schedule, err := NewSchedule(cappedBudget(), map[string]Facet{"character": {Config: c, Cost: 1}})
	if err != nil {
		w.Fatal(err)
	}
	s, err := NewScheduler("nexon", schedule, Deps{
		Store: w.store, Enqueuer: killableEnqueuer{w, kill}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Capacity: func(context.Context, time.Time) (Capacity, error) { return Capacity{PerSecond: 250, Share: 0.5}, nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	return &testScheduler{s, ctx}
}

var seedCount = flag.Uint64("seeds", 0, "number of seeds for each random test; 0: as many as fit into make test")

// Two schedulers are killed several times while they enqueue. A new scheduler replaces a killed one
// after four ticks. Each entity must still be requested about once in each interval.
func TestScheduler_SurvivesKills(t *testing.T) {
	for seed := range cmp.Or(*seedCount, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 3))
			w := newWorld(t, 600)
			deaths := 0
			w.killed = func() bool {
				if rng.IntN(100) > 0 {
					return false
				}
				deaths++
				return true
			}
			all := []*testScheduler{w.scheduler(), w.scheduler()}
			away := [2]int{}
			end := w.now.Add(5 * time.Hour)
			for ; w.now.Before(end); w.now = w.now.Add(5 * time.Second) {
				for i, s := range all {
					if s.ctx.Err() != nil {
						// Four ticks after a scheduler was killed, a new one replaces it.
						if away[i]++; away[i] > 4 {
							all[i], away[i] = w.scheduler(), 0
						}
						continue
					}
					if _, err := s.tick(s.ctx, w.now); err != nil && s.ctx.Err() == nil {
						t.Fatal(err)
					}
				}
				w.finishRefreshes()
			}
			if deaths < 10 {
				t.Fatalf("got only %d kills", deaths)
			}
			begin := end.Add(-5 * time.Hour)
			for i := range 600 {
				asked := w.published[entity(i)]
				if len(asked) < 4 || len(asked) > 6 {
					t.Errorf("entity %d: got %d requests in 5 h", i, len(asked))
				}
				last := begin
				for _, at := range append(asked, end) {
					if gap := at.Sub(last); gap > 100*time.Minute {
						t.Errorf("entity %d: got no request for %v", i, gap)
					} else if gap < 20*time.Minute && last != begin && at != end {
						t.Errorf("entity %d: got a second request after %v", i, gap)
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
		t.Errorf("new scheduler: got the price %v, want the shared one", got)
	}
	for i := range minSample { // with so many observations, the price can change by the maximum step
		first.price.observe(hashEntity(entity(i)), observation{policy: first.policies["character"], seen: activity{changes: 1, reads: 100}, passed: 1, at: w.now})
	}
	w.now = w.now.Add(2 * priceInterval)
	tick(first)
	if first.price.Value() == 7 {
		t.Fatal("no scheduler adjusted the price")
	}
	w.now = w.now.Add(time.Second)
	tick(second)
	if second.price.Value() != first.price.Value() {
		t.Errorf("prices: got %v and %v, want equal ones", first.price.Value(), second.price.Value())
	}
}

// hungStore is a store whose ClaimEntities hangs for the duration in its field "while", like the
// call of a hung process. After the lease has expired, RenewClaim reports that another scheduler
// has the claim.
type hungStore struct {
	Store
	while    time.Duration
	until    time.Time
	requests int
}

func (h *hungStore) TakeOverClaim(context.Context, string, time.Time, time.Duration) (c prefetched.Claim, found bool, err error) {
	return c, false, nil
}

func (h *hungStore) ClaimEntities(_ context.Context, source string, now time.Time, _ int, lease time.Duration, _ func(string) bool, _ func(prefetched.Candidate) prefetched.Decision) (prefetched.Claim, error) {
	h.until = time.Now().Add(lease)
	<-time.After(h.while)
	c := prefetched.NewClaim(source, now)
	c.Requests = []prefetched.ClaimedRequest{{Entity: entity(0)}}
	return c, nil
}

func (h *hungStore) RenewClaim(context.Context, string, time.Time) (bool, error) {
	return time.Now().Before(h.until), nil
}

func (h *hungStore) Price(context.Context, string) (price float64, at time.Time, err error) {
	return 1, at, nil
}

func (h *hungStore) SetPrice(context.Context, string, float64, time.Time, time.Duration) (bool, error) {
	return true, nil
}

func (h *hungStore) FinishClaim(context.Context, string) error { return nil }

func (h *hungStore) NextEntityTime(context.Context, string) (due time.Time, err error) {
	return due, nil
}

func (h *hungStore) EntitiesDueAfter(context.Context, string, time.Time, int, func(string) bool) ([]prefetched.Candidate, error) {
	return nil, nil
}

func (h *hungStore) BringForward(context.Context, []prefetched.DueTime) error { return nil }

func (h *hungStore) Prefetch(_ context.Context, requests []prefetched.ClaimedRequest) []prefetched.ClaimedRequest {
	h.requests += len(requests)
	return nil
}

func TestScheduler_StopsAfterLosingClaim(t *testing.T) {
	for while, want := range map[time.Duration]int{0: 1, lease / 2: 1, lease + time.Second: 0} {
		synctest.Test(t, func(t *testing.T) {
			h := &hungStore{while: while}
			schedule, err := NewSchedule(cappedBudget(), map[string]Facet{"character": {Config: DefaultConfig(), Cost: 1}})
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
			for range 2 { // the credit starts to grow at the first tick, so a second tick is needed
				if _, err := s.tick(t.Context(), time.Now()); err != nil {
					t.Fatal(err)
				}
				<-time.After(time.Second)
			}
			if h.requests != want {
				t.Errorf("got %d requests after a hang of %v, want %d", h.requests, while, want)
			}
		})
	}
}

// ticks runs a scheduler for the duration `long`. Each tick returns the time of the next tick. The result
// is the number of ticks.
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
		t.Errorf("got %d ticks in ten minutes", n)
	}
	if got := s.idleBudget.Fraction(); got < 0.9 {
		t.Errorf("idle budget without due entities: got %v", got)
	}
}

// The first refresh of an entity also takes the calls of the facets that it takes params from.
func TestSchedule_CountsTheCallsOfAFirstRefresh(t *testing.T) {
	config := DefaultConfig()
	config.Mode = Tiers
	s, err := NewSchedule(cappedBudget(), map[string]Facet{"plain": {Config: config, Cost: 2}, "named": {Config: config, Cost: 2, FirstCost: 3}})
	if err != nil {
		t.Fatal(err)
	}
	for facet, want := range map[string][2]float64{"plain": {2, 2}, "named": {2, 3}, "unknown": {1, 1}} {
		e := schemas.Entity{Source: "nexon", Facet: facet, Key: "a"}
		if got := s.costOf([]prefetched.ClaimedRequest{{Entity: e, Version: 7}}); got != want[0] {
			t.Errorf("calls of a refresh of %s: got %v, want %v", facet, got, want[0])
		}
		if got := s.costOf([]prefetched.ClaimedRequest{{Entity: e}}); got != want[1] {
			t.Errorf("calls of the first refresh of %s: got %v, want %v", facet, got, want[1])
		}
	}
}

// A facet with an expensive refresh exists, but none of its entities is due. The cheap facet must
// use the whole budget.
func TestScheduler_ExpensiveFacetStarvesNone(t *testing.T) {
	const n = 6000
	w := newWorld(t, n)
	all, err := w.store.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, n)
	if err != nil {
		t.Fatal(err)
	}
	w.now = all[0].Due
	for _, r := range all {
		if r.Due.After(w.now) {
			w.now = r.Due // after the loop w.now is the latest due time, so all entities are due
		}
	}
	w.now = w.now.Add(time.Minute)
	s := w.scheduler()
	s.Schedule.cost["dear"], s.Schedule.maxCost, s.mean = facetCost{43, 43}, 43, 43
	w.ticks(s, 60*time.Second)
	fed := len(w.published)
	// The scheduler may use half of 250 calls a second, because two schedulers run. In 60 s it must
	// enqueue the calls of at least 50 s, or all n requests.
	if fed < 125*50 && fed < n {
		t.Errorf("got %d requests in a minute", fed)
	}
	if used := 1 - s.idleBudget.Fraction(); fed < n && used < 0.9 {
		t.Errorf("used budget: got %v", used)
	}
}
