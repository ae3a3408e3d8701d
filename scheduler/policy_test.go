package scheduler

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

var seoul, _ = time.LoadLocation("Asia/Seoul")

func newPolicy(t testing.TB, mode Mode, change func(*Config)) *Policy {
	t.Helper()
	c := DefaultConfig()
	c.Mode, c.TimeZone, c.NotBefore = mode, "Asia/Seoul", 120
	if change != nil {
		change(&c)
	}
	s := cappedBudget()
	s.TimeZone = "Asia/Seoul"
	p, err := NewPolicy(c, s, 1, NewPrice())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func entity(n int) schemas.Entity {
	return schemas.Entity{Source: "nexon", Facet: "character", Key: strconv.Itoa(n)}
}

func candidate(n int, tier prefetched.Tier) prefetched.Candidate {
	return prefetched.Candidate{RegisteredEntity: prefetched.RegisteredEntity{Entity: entity(n), Tier: tier, Enabled: true}}
}

// readsOf returns a number of reads in the history that keeps an entity in this tier.
func readsOf(tier prefetched.Tier) float64 {
	return map[prefetched.Tier]float64{prefetched.Hot: 400, prefetched.Warm: 30}[tier]
}

// play simulates the claims of one entity for the duration `long`, each claim with the delay that
// `late` returns. It returns the times of the requests.
func play(p *Policy, c prefetched.Candidate, from time.Time, long time.Duration, late func() time.Duration) (asked []time.Time) {
	now := from
	for c.Due = p.FirstDue(c.Entity, c.Tier, from); c.Due.Before(from.Add(long)); {
		if at := c.Due.Add(late()); at.After(now) {
			now = at
		}
		c.History.Reads = readsOf(c.Tier)
		m := p.Next(c, now)
		if m.Enqueue {
			asked = append(asked, now)
			c.State.CheckedAt = now.Add(time.Second)
		}
		c.Due, c.Tier, c.History = m.Due, m.Tier, m.History
	}
	return asked
}

func onTime() time.Duration { return time.Second }

func TestPolicy_SpreadsMassImport(t *testing.T) {
	start := time.Date(2026, 5, 5, 14, 0, 0, 0, seoul)
	for _, mode := range []Mode{Tiers, Adaptive} {
		p := newPolicy(t, mode, nil)
		const n = 20000
		hours := map[int64]int{}
		for i := range n {
			for _, at := range play(p, candidate(i, prefetched.Cold), start, 72*time.Hour, onTime) {
				if p.ContentNotReady(at) {
					t.Fatalf("%s: got a request at %v", mode, at)
				}
				hours[int64(p.clock.workAt(at)-p.clock.workAt(start))/int64(time.Hour)]++
			}
		}
		for h := range int64(72) {
			if got, mean := hours[h], n/24; mode == Tiers && (got < mean*8/10 || got > mean*12/10) {
				t.Errorf("%s: got %d of %d requests in hour %d of work, want about the mean %d", mode, got, n, h, mean)
			} else if got > mean*14/10 {
				t.Errorf("%s: second round: got %d of %d requests in hour %d of work, want about the mean %d", mode, got, n, h, mean)
			}
		}
	}
}

func TestPolicy_LateClaimKeepsSlot(t *testing.T) {
	start := time.Date(2026, 5, 5, 14, 0, 0, 0, seoul)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, tier := range []prefetched.Tier{prefetched.Hot, prefetched.Warm, prefetched.Cold} {
		p := newPolicy(t, Tiers, func(c *Config) { c.NotBefore = 0 })
		every := p.tier(tier).Every
		for i := range 200 {
			asked := play(p, candidate(i, tier), start, 20*every, func() time.Duration {
				return time.Duration(rng.Int64N(int64(every * 3 / 2)))
			})
			after := play(p, candidate(i, tier), start, 20*every, onTime)
			s := p.due.scale(every)
			for j := 1; j < len(asked); j++ {
				if d := s.of(asked[j]) - s.of(asked[j-1]); d < every/3-time.Second {
					t.Fatalf("tier %d, entity %d: got an interval of %v", tier, i, d)
				}
			}
			// The late claims must not have moved the regular due times (slots) of the entity. So its
			// next due time must have the same place within the interval as before.
			c := candidate(i, tier)
			c.History.Reads = readsOf(tier)
			m := p.Next(c, asked[len(asked)-1])
			off := (s.of(m.Due) - s.of(after[0])) % every
			if off = min(off.Abs(), every-off.Abs()); off > p.config.Jitter+2*time.Second {
				t.Fatalf("tier %d, entity %d: got a due time %v from its slot", tier, i, off)
			}
		}
	}
}

func TestPolicy_SkipsRecentlyChecked(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, mode := range []Mode{Tiers, Adaptive} {
		p := newPolicy(t, mode, func(c *Config) { c.NotBefore = 0 })
		for i := range 20000 {
			c := candidate(i, prefetched.Tier(rng.IntN(3)))
			c.History.Reads = readsOf(c.Tier)
			now := time.Date(2026, 5, 5, 0, 0, 0, 0, seoul).Add(time.Duration(rng.Int64N(int64(72 * time.Hour))))
			_, seen := updateHistory(c, now)
			every := p.intervalOf(p.tierByReads(c.RegisteredEntity, seen), seen, store.State{})
			s := p.due.scale(every)
			c.State.CheckedAt = now.Add(-time.Duration(rng.Int64N(int64(every))))
			c.State.Manual = true
			age := s.of(now) - s.of(c.State.CheckedAt)
			m := p.Next(c, now)
			if free := now.Sub(c.State.CheckedAt) >= 30*time.Minute; m.Enqueue != (age >= every/2 && free) {
				t.Fatalf("%s: checked %v ago, interval %v: got enqueue %v", mode, age, every, m.Enqueue)
			}
			if m.Enqueue {
				continue
			}
			wait := m.Due.Sub(c.State.CheckedAt)
			if wait < 30*time.Minute || !m.Due.After(now) {
				t.Fatalf("%s: got a due time %v after its check, within the cool-down", mode, wait)
			}
			if work := s.of(m.Due) - s.of(c.State.CheckedAt); work > max(every*106/100, 32*time.Minute*2) {
				t.Fatalf("%s: got a due time %v after its check, interval %v", mode, work, every)
			}
			if m.History != c.History {
				t.Fatalf("%s: a skipped entity has a changed history", mode)
			}
		}
	}
}

func TestPolicy_FailureDelaysByBackoff(t *testing.T) {
	now := time.Date(2026, 5, 5, 14, 0, 0, 0, seoul)
	for _, mode := range []Mode{Tiers, Adaptive} {
		p := newPolicy(t, mode, nil)
		last := time.Duration(0)
		for rounds := range 5 {
			c := candidate(1, prefetched.Warm)
			c.History.Reads = 20
			c.Status = store.Status{State: store.Retrying, Rounds: rounds, Until: now.Add(time.Minute)}
			m := p.Next(c, now)
			wait := m.Due.Sub(c.Status.Until)
			if m.Enqueue || wait <= last || wait > 11*time.Minute<<rounds {
				t.Errorf("%s: round %d: got a due time %v after the retry (enqueue %v)", mode, rounds, wait, m.Enqueue)
			}
			last = wait
		}
		c := candidate(1, prefetched.Cold)
		c.Status = store.Status{State: store.Failed, Until: now.Add(-time.Minute)}
		c.State.CheckedAt = now.Add(-25 * time.Hour)
		if m := p.Next(c, now); !m.Enqueue {
			t.Errorf("%s: an expired hold still blocks the request", mode)
		}
		for _, held := range []prefetched.Candidate{
			{RegisteredEntity: prefetched.RegisteredEntity{Entity: entity(1), Enabled: false}},
			{RegisteredEntity: prefetched.RegisteredEntity{Entity: entity(1), Enabled: true}, Status: store.Status{State: store.Suspended}},
			{RegisteredEntity: prefetched.RegisteredEntity{Entity: entity(1), Enabled: true}, Status: store.Status{State: store.Failed, Until: now.Add(time.Hour)}},
		} {
			if m := p.Next(held, now); m.Enqueue || !m.Due.After(now) {
				t.Errorf("%s: %+v: got a request, want none", mode, held)
			}
		}
	}
}

func TestPolicy_TierChangesHaveHysteresis(t *testing.T) {
	p := newPolicy(t, Tiers, nil)
	for _, rate := range []float64{0, 1, 2.5, 3.9, 4.2, 10, 13, 20, 23, 26, 100} {
		rng := rand.New(rand.NewPCG(7, uint64(rate*10)))
		c, now := candidate(1, prefetched.Cold), time.Date(2026, 5, 5, 14, 0, 0, 0, seoul)
		moves, last := 0, now
		for step := range 400 {
			c.History.Reads += poisson(rng, rate*now.Sub(last).Hours()/24)
			last = now
			m := p.Next(c, now)
			if m.Tier != c.Tier && step > 100 {
				moves++
			}
			c.Tier, c.History, c.Due = m.Tier, m.History, m.Due
			if m.Enqueue {
				c.State.CheckedAt = now.Add(time.Second)
			}
			now = m.Due
		}
		if moves > 20 {
			t.Errorf("%v reads a day: got %d tier changes in 300 visits", rate, moves)
		}
		want := prefetched.Cold
		if rate >= 6 {
			want = prefetched.Warm
		}
		if rate >= 26 {
			want = prefetched.Hot
		}
		if c.Tier > want || (rate < 1.5 && c.Tier != prefetched.Cold) || (rate < 9 && c.Tier == prefetched.Hot) {
			t.Errorf("%v reads a day: got tier %d", rate, c.Tier)
		}
	}
}

func poisson(rng *rand.Rand, mean float64) float64 {
	n := 0.0
	for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
		n++
	}
	return n
}

func FuzzPolicy_NextIsLater(f *testing.F) {
	f.Add(int64(1), uint8(0), 0.0, int64(0), 0.0, int64(0), int64(0), int64(0), int64(0), uint8(0), false)
	f.Add(int64(1e9), uint8(2), 5.0, int64(1e15), 3.0, int64(-5e9), int64(7e9), int64(-1e18), int64(1e18), uint8(3), true)
	f.Add(int64(1792e6), uint8(1), math.NaN(), int64(-1), math.Inf(1), int64(1<<62), int64(-1<<62), int64(1), int64(2), uint8(1), true)
	policies := []*Policy{newPolicy(f, Tiers, nil), newPolicy(f, Adaptive, nil)}
	f.Fuzz(func(t *testing.T, at int64, tier uint8, changes float64, watched int64, reads float64, claimed, checked, updated, until int64, status uint8, notFound bool) {
		now := time.Unix(int64(uint64(at)%4e9), at%1e9)
		c := candidate(int(at), prefetched.Tier(tier))
		c.History = prefetched.History{Changes: changes, Watched: time.Duration(watched), Reads: reads, ClaimedAt: now.Add(time.Duration(claimed))}
		c.State = store.State{CheckedAt: now.Add(time.Duration(checked)), UpdatedAt: now.Add(time.Duration(updated)), NotFound: notFound}
		states := []store.StatusState{"", store.Retrying, store.Failed, store.Suspended}
		c.Status = store.Status{State: states[int(status)%4], Until: now.Add(time.Duration(until)), Rounds: int(status), Failures: int(tier)}
		for _, p := range policies {
			m := p.Next(c, now)
			if !m.Due.After(now) || m.Due.Sub(now) > p.maxInterval()*3/2+26*time.Hour || p.ContentNotReady(m.Due) {
				t.Errorf("%s: claimed at %v: got the due time %v", p.config.Mode, now.In(seoul), m.Due.In(seoul))
			}
			if h := m.History; m.Enqueue && !(h.Changes >= 0 && h.Reads >= 0 && h.Watched >= 0 && h.Changes < math.Inf(1) && h.Reads < math.Inf(1)) {
				t.Errorf("%s: history %+v: got %+v", p.config.Mode, c.History, h)
			}
			if m.Enqueue && p.ContentNotReady(now) {
				t.Errorf("%s: got a request at %v", p.config.Mode, now.In(seoul))
			}
			if m.Enqueue && (states[int(status)%4] == store.Suspended || states[int(status)%4] == store.Retrying) {
				t.Errorf("%s: held: got a request, want none", p.config.Mode)
			}
		}
	})
}

func TestPolicy_ReadsMakeDueOnce(t *testing.T) {
	p := newPolicy(t, Tiers, nil)
	for _, c := range []struct {
		from          prefetched.Tier
		before, after float64
		want          bool
	}{
		{prefetched.Cold, 11, 12, true},
		{prefetched.Cold, 0, 500, true},
		{prefetched.Cold, 0, 11, false},
		{prefetched.Cold, 12, 13, false},
		{prefetched.Warm, 12, 13, false},
		{prefetched.Warm, 71, 72, true},
		{prefetched.Hot, 71, 72, false},
	} {
		if got := p.readsMakeDue(prefetched.RegisteredEntity{Tier: c.from}, c.before, c.after); got != c.want {
			t.Errorf("%v from %v to %v reads: got %v", c.from, c.before, c.after, got)
		}
	}
	// Three reads a day are too few for the tier warm. So they never make the entity due at once.
	c := candidate(1, prefetched.Cold)
	now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	for range 100 {
		before := c.History.Reads
		for range 3 {
			if c.History.Reads++; p.readsMakeDue(c.RegisteredEntity, before, c.History.Reads) {
				t.Fatalf("three reads a day: got due at %v reads, want never", c.History.Reads)
			}
		}
		now = now.Add(24 * time.Hour)
		m := p.Next(c, now)
		c.Tier, c.History = m.Tier, m.History
		c.State.CheckedAt = now.Add(time.Second)
	}
	if c.Tier != prefetched.Cold {
		t.Errorf("three reads a day: got tier %v", c.Tier)
	}
}
