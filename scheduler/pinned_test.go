package scheduler

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

func pinned(n int, tier prefetched.Tier) prefetched.Candidate {
	c := candidate(n, tier)
	c.Pinned = true
	return c
}

func TestPolicy_KeepsAPinnedTier(t *testing.T) {
	p := newPolicy(t, Tiers, func(c *Config) { c.NotBefore = 0 })
	for _, tier := range []prefetched.Tier{prefetched.Hot, prefetched.Warm, prefetched.Cold} {
		for _, reads := range []float64{0, 10_000} {
			c, now := pinned(1, tier), time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
			for visit := range 5 {
				c.History.Reads = reads
				m := p.Next(c, now)
				if m.Tier != tier {
					t.Fatalf("pinned tier %v after visit %d with %v reads: got %v", tier, visit, reads, m.Tier)
				}
				if wait, every := m.Due.Sub(now), p.tier(tier).Every; wait > every*3/2 {
					t.Fatalf("pinned tier %v: due after %v, want about %v", tier, wait, every)
				}
				c.State.CheckedAt, c.History, now = now.Add(time.Second), m.History, m.Due
			}
		}
	}
}

// The interval of the pinned tier is an upper bound; a low price can only make the interval
// shorter.
func TestPolicy_PinnedTierBoundsInterval(t *testing.T) {
	p := newPolicy(t, Adaptive, func(c *Config) { c.NotBefore = 0 })
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	c := pinned(1, prefetched.Hot)
	c.History.ClaimedAt = now.Add(-time.Hour)
	for price, want := range map[float64]time.Duration{maxPrice: time.Hour, minPrice: 30 * time.Minute} {
		p.price.price = price
		c.State.CheckedAt = now.Add(-time.Hour)
		m := p.Next(c, now)
		if wait := m.Due.Sub(now); !m.Enqueue || wait < want*8/10 || wait > want*12/10 {
			t.Errorf("price %v: got enqueue %v, due after %v, want true and about %v", price, m.Enqueue, wait, want)
		}
	}
}

func TestPolicy_BringsForwardAfterReads(t *testing.T) {
	tiers, adaptive := newPolicy(t, Tiers, nil), newPolicy(t, Adaptive, nil)
	for _, c := range []struct {
		of            prefetched.RegisteredEntity
		before, after float64
		tiers, adapt  bool
	}{
		{prefetched.RegisteredEntity{Tier: prefetched.Hot, Pinned: true}, 71, 72, false, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Hot, Pinned: true}, 11, 12, false, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Hot}, 71, 72, false, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Cold, Pinned: true}, 11, 12, false, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Cold}, 11, 12, true, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Warm}, 71, 72, true, true},
		{prefetched.RegisteredEntity{Tier: prefetched.Hot, Pinned: true}, 72, 73, false, false},
	} {
		if got := tiers.readsMakeDue(c.of, c.before, c.after); got != c.tiers {
			t.Errorf("tiers, %+v from %v to %v reads: got %v, want %v", c.of, c.before, c.after, got, c.tiers)
		}
		if got := adaptive.readsMakeDue(c.of, c.before, c.after); got != c.adapt {
			t.Errorf("adaptive, %+v from %v to %v reads: got %v, want %v", c.of, c.before, c.after, got, c.adapt)
		}
	}
}

// An entity is imported as hot and is never read, as in the example of the README. It must stay hot
// only if its tier is pinned.
func TestScheduler_KeepsImportedTier(t *testing.T) {
	for _, pin := range []bool{true, false} {
		w := newWorld(t, 0)
		s := w.scheduler()
		r := prefetched.RegisteredEntity{Entity: entity(0), Tier: prefetched.Hot, Pinned: pin, Enabled: true}
		r.Due, _ = s.FirstDue(r, w.now)
		if _, err := w.store.RegisterEntities(t.Context(), []prefetched.RegisteredEntity{r}); err != nil {
			t.Fatal(err)
		}
		w.play(s, 5*time.Hour)
		if got := len(w.published[entity(0)]); (got >= 4) != pin {
			t.Errorf("pinned %v: requests of a hot entity in 5 h: got %d", pin, got)
		}
	}
}
