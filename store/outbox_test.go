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
