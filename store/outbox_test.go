package store

import (
	"testing"
	"time"
)

func TestTrigger_SkipsRecentlyRefreshed(t *testing.T) {
	now := time.Unix(1.8e9, 0)
	trigger := Trigger{Backoff: 24 * time.Hour}
	for age, want := range map[time.Duration]bool{time.Hour: false, 24*time.Hour - 1: false, 24 * time.Hour: true} {
		if got := trigger.Fires(State{CheckedAt: now.Add(-age)}, now); got != want {
			t.Errorf("checked %v ago: Fires returned %v", age, got)
		}
	}
	if !trigger.Fires(State{}, now) {
		t.Error("a trigger of a facet that was never checked does not fire")
	}
}

// A link must not refresh a fresh target. If the target was not found, the link's request must be
// enqueued: the hold of the not-found result rejects the request, and this hold can end before fresh
// content would become stale.
func TestTrigger_LinkSkipsFreshTargets(t *testing.T) {
	now := time.Unix(1.8e9, 0)
	link := Trigger{Key: "a", Depth: 1, Backoff: time.Hour}
	for name, c := range map[string]struct {
		state State
		want  bool
	}{
		"unknown":  {State{}, true},
		"fresh":    {State{CheckedAt: now.Add(-time.Minute), Encoding: "zstd"}, false},
		"stale":    {State{CheckedAt: now.Add(-time.Hour), Encoding: "zstd"}, true},
		"notfound": {State{CheckedAt: now.Add(-time.Minute), NotFound: true}, true},
	} {
		if got := link.Fires(c.state, now); got != c.want {
			t.Errorf("%s: Fires returned %v, want %v", name, got, c.want)
		}
	}
	if (Trigger{Backoff: time.Hour}).Fires(State{CheckedAt: now.Add(-time.Minute), NotFound: true}, now) {
		t.Error("a trigger of another facet fires for a target that was just not found")
	}
}
