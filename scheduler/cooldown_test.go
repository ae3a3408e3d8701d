package scheduler

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store/prefetched"
)

// cooldowns returns a policy with the interval `every` for hot and warm entities. `automatic` and
// `manual` are the two values of its Cooldown.
func cooldowns(t *testing.T, every, automatic, manual time.Duration) *Policy {
	t.Helper()
	return newPolicy(t, Tiers, func(c *Config) {
		c.NotBefore, c.Jitter = 0, 0
		c.Tiers = TierSet{Hot: Tier{Every: every, Reads: 24}, Warm: Tier{Every: every, Reads: 4}, Cold: Tier{Every: 24 * time.Hour}}
		c.Cooldown = Cooldown{Automatic: automatic, Manual: manual}
		c.Backoff = time.Minute
	})
}

// dueAfter returns the decision of Policy.Next for one entity, and the time from the entity's last
// check to its new due time. The scheduler claimed the entity at 10:00. A manual or a scheduled
// refresh checked the entity at 10:00 + checked. dueAfter calls Next at 10:00 + called.
func dueAfter(p *Policy, checked, called time.Duration, manual bool) (m prefetched.Decision, due time.Duration) {
	claimed := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
	c := candidate(1, prefetched.Hot)
	c.History.ClaimedAt, c.History.Reads = claimed, readsOf(prefetched.Hot)
	c.State.CheckedAt, c.State.Manual = claimed.Add(checked), manual
	m = p.Next(c, claimed.Add(called))
	return m, m.Due.Sub(c.State.CheckedAt)
}

// The scheduler refreshes an entity, and 51 s later a manual refresh follows. When the entity is due
// again, more than half of the interval has passed since the manual refresh. So only the cool-down can
// prevent the next refresh.
func TestCooldown_HoldsAfterAManualRefresh(t *testing.T) {
	p := cooldowns(t, 122*time.Second, 0, 2*time.Minute)
	if m, due := dueAfter(p, 51*time.Second, 122*time.Second, true); m.Enqueue || due < 2*time.Minute {
		t.Errorf("71 s after a manual refresh: got enqueue %v, due %v after it, want false and at least 2m", m.Enqueue, due)
	}
	if m, _ := dueAfter(p, 51*time.Second, 51*time.Second+2*time.Minute, true); !m.Enqueue {
		t.Error("2 min after a manual refresh: got no request, want one")
	}
}

func TestCooldown_HoldsAfterAScheduledRefresh(t *testing.T) {
	p := cooldowns(t, time.Hour, 50*time.Minute, 0)
	if m, due := dueAfter(p, 10*time.Second, 40*time.Minute, false); m.Enqueue || due < 50*time.Minute {
		t.Errorf("40 min after a scheduled refresh: got enqueue %v, due %v after it, want false and at least 50m", m.Enqueue, due)
	}
	if m, _ := dueAfter(p, 10*time.Second, 51*time.Minute, false); !m.Enqueue {
		t.Error("51 min after a scheduled refresh: got no request, want one")
	}
}

// The cool-down after manual refreshes does not apply after other refreshes, and vice versa.
func TestCooldown_OfOneKindDoesNotHoldTheOther(t *testing.T) {
	for _, manual := range []bool{true, false} {
		p := cooldowns(t, time.Hour, 0, 55*time.Minute)
		if !manual {
			p = cooldowns(t, time.Hour, 55*time.Minute, 0)
		}
		if m, _ := dueAfter(p, 40*time.Minute, 80*time.Minute, !manual); !m.Enqueue {
			t.Errorf("cool-down of manual refreshes: %v, of the other kind: got no request, want one", manual)
		}
	}
}

// The survey, which makes later entities due earlier, never makes an entity due before the end of
// its cool-down.
func TestCooldown_HoldsAgainstASurvey(t *testing.T) {
	for _, manual := range []bool{true, false} {
		p := newPolicy(t, Adaptive, func(c *Config) {
			c.NotBefore, c.MinInterval, c.Cooldown = 0, 10*time.Minute, Cooldown{Automatic: 10 * time.Minute, Manual: 2 * time.Hour}
		})
		p.price.price = minPrice
		now := time.Date(2026, 5, 5, 10, 0, 0, 0, seoul)
		c := candidate(1, prefetched.Cold)
		c.Due, c.History.ClaimedAt = now.Add(100*time.Hour), now.Add(-time.Hour)
		c.State.CheckedAt, c.State.Manual = now.Add(-time.Minute), manual
		due, earlier := p.EarlierDue(c, now)
		want := 10 * time.Minute * 85 / 100
		if manual {
			want = 2 * time.Hour
		}
		if wait := due.Sub(c.State.CheckedAt); !earlier || wait < want || wait > want*3/2 {
			t.Errorf("manual %v: got earlier %v, due %v after the check, want about %v", manual, earlier, wait, want)
		}
	}
}
