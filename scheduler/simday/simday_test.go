package main

import "testing"

// TestADayOfPrefetch plays a hundredth of everything, on few days. The bounds hold at the
// size that docs/schedule.md tells of too, with room to spare.
func TestADayOfPrefetch(t *testing.T) {
	if testing.Short() {
		t.Skip("plays for some seconds")
	}
	of := map[string]*result{}
	for _, name := range []string{"tiers", "adaptive"} {
		r, err := play(name, 180_000, 4, 1, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", name, r.row())
		of[name] = r
	}
	tiers, adaptive := of["tiers"], of["adaptive"]
	if a, b := adaptive.old/adaptive.reads, tiers.old/tiers.reads; a > 0.65*b {
		t.Errorf("of reads %.3f saw outdated content, by tiers %.3f", a, b)
	}
	if adaptive.oldFor/adaptive.reads > tiers.oldFor/tiers.reads {
		t.Errorf("what was read was outdated for %v s, by tiers for %v s", adaptive.oldFor/adaptive.reads, tiers.oldFor/tiers.reads)
	}
	for name, r := range of {
		// So few calls a minute are uneven by chance alone; at full size it is 1.3.
		if r.peak() > 1.6 {
			t.Errorf("%s: the peak minute is %v of the mean", name, r.peak())
		}
		if r.budget > 1 || r.budget < 0.8 {
			t.Errorf("%s: %v of the budget was used", name, r.budget)
		}
		if name == "tiers" && r.oldest > 2.5*86400 { // since the begin; one that is put off each midnight would be older
			t.Errorf("%s: somebody was checked %.1f days ago", name, r.oldest/86400)
		}
		if r.longest > 86400 {
			t.Errorf("%s: somebody has been overdue for %d s", name, r.longest)
		}
	}
	if share := adaptive.onTime / adaptive.low; share < 0.9 {
		t.Errorf("adaptive: %.2f were refreshed on time", share)
	}
}

// TestTiersKeepTheirIntervalsWhereTheBudgetIsEnough for them.
func TestTiersKeepTheirIntervalsWhereTheBudgetIsEnough(t *testing.T) {
	if testing.Short() {
		t.Skip("plays for some seconds")
	}
	r, err := play("tiers", 100_000, 3, 1, 1.35, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.row())
	if share := r.onTime / r.low; share < 0.95 {
		t.Errorf("%.3f were refreshed on time", share)
	}
}
