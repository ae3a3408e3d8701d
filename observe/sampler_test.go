package observe_test

import (
	"testing"
	"time"

	"github.com/freshet/freshet/observe"
)

func TestLogSampler_PassesFirstTwentyThenEveryHundredth(t *testing.T) {
	var s observe.LogSampler
	now := time.Unix(1_000_000, 0)
	var passed []int
	skippedInAll := 0
	for n := 1; n <= 500; n++ {
		if skipped, pass := s.Pass(now.Add(time.Duration(n) * time.Millisecond)); pass {
			passed = append(passed, n)
			skippedInAll += skipped
		}
	}
	if got, want := len(passed), 24; got != want {
		t.Errorf("lines of 500 in a second: got %d, want %d", got, want)
	}
	if got, want := passed[len(passed)-1], 420; got != want {
		t.Errorf("last line: got number %d, want %d", got, want)
	}
	if got, want := skippedInAll, 4*99; got != want {
		t.Errorf("skipped lines that were counted: got %d, want %d", got, want)
	}
	if skipped, pass := s.Pass(now.Add(time.Second)); !pass || skipped != 80 {
		t.Errorf("first line of the next second: got %d skipped, passed %v; want 80, true", skipped, pass)
	}
}
