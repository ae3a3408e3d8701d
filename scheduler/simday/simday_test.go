package main

import "testing"

// TestSimday_PrefetchesOneDay simulates four days with a hundredth of the entities, and checks bounds
// for the results. The results with all 18 million entities (docs/schedule.md) are within the same
// bounds.
func TestSimday_PrefetchesOneDay(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates for some seconds")
	}
	of := map[string]*result{}
	for _, name := range []string{"tiers", "adaptive"} {
		r, err := simulate(name, 180_000, 4, 1, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, r.row())
		of[name] = r
	}
	tiers, adaptive := of["tiers"], of["adaptive"]
	if a, b := adaptive.outdated/adaptive.reads, tiers.outdated/tiers.reads; a > 0.65*b {
		t.Errorf("adaptive: got %.3f outdated reads, want at most 0.65 of tiers, %.3f", a, b)
	}
	if adaptive.outdatedSeconds/adaptive.reads > tiers.outdatedSeconds/tiers.reads {
		t.Errorf("adaptive: got %v s outdated a read, want at most that of tiers, %v s", adaptive.outdatedSeconds/adaptive.reads, tiers.outdatedSeconds/tiers.reads)
	}
	for name, r := range of {
		// With few calls a minute, the peak is higher by chance; with all 18 million entities it is
		// 1.3 times the mean.
		if r.peak() > 1.6 {
			t.Errorf("%s: peak minute / mean: got %v, want at most 1.6", name, r.peak())
		}
		if r.budgetUsed > 1 || r.budgetUsed < 0.8 {
			t.Errorf("%s: budget used: got %v, want 0.8 to 1", name, r.budgetUsed)
		}
		// An entity that is delayed again at each midnight would exceed this limit.
		if name == "tiers" && r.oldestCheck > 2.5*86400 {
			t.Errorf("%s: oldest check: got %.1f days ago, want at most 2.5", name, r.oldestCheck/86400)
		}
		if r.maxOverdue > 86400 {
			t.Errorf("%s: longest overdue: got %d s, want at most 86400", name, r.maxOverdue)
		}
	}
	if share := adaptive.onTime / adaptive.low; share < 0.9 {
		t.Errorf("adaptive: refreshed on time: got %.2f, want at least 0.9", share)
	}
}

func TestSimday_TiersKeepIntervals(t *testing.T) {
	if testing.Short() {
		t.Skip("plays for some seconds")
	}
	r, err := simulate("tiers", 100_000, 3, 1, 1.35, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.row())
	if share := r.onTime / r.low; share < 0.95 {
		t.Errorf("tiers: refreshed on time: got %.3f, want at least 0.95", share)
	}
}
