package virtual

import (
	"slices"
	"testing"
)

// maxShrinkRuns is the maximum number of runs with which shrink tests shorter plans.
const maxShrinkRuns = 40

// shrink removes faults from a plan. It keeps a shorter plan only if the function `fails` returns
// true for that plan. It first removes halves of the plan, and then smaller parts. It calls `fails`
// at most maxShrinkRuns times.
func shrink(plan []fault, fails func([]fault) bool) []fault {
	runs := 0
	for size := (len(plan) + 1) / 2; size > 0 && len(plan) > 0; {
		dropped := false
		for at := 0; at < len(plan); {
			if runs == maxShrinkRuns {
				return plan
			}
			runs++
			if rest := slices.Delete(slices.Clone(plan), at, min(at+size, len(plan))); fails(rest) {
				plan, dropped = rest, true
			} else {
				at += size
			}
		}
		if size == 1 && !dropped {
			return plan
		}
		size = max(1, size/2)
	}
	return plan
}

func TestShrink_KeepsOnlyNeededFaults(t *testing.T) {
	plan := draw(1, lengthOfDay)
	needed := []fault{plan[3], plan[17]}
	got := shrink(plan, func(rest []fault) bool {
		return slices.Contains(rest, needed[0]) && slices.Contains(rest, needed[1])
	})
	if !slices.Equal(got, needed) {
		t.Errorf("got %v, want %v", got, needed)
	}
}

func TestDraw_DependsOnItsSeedOnly(t *testing.T) {
	if a, b := draw(7, lengthOfDay), draw(7, lengthOfDay); !slices.Equal(a, b) {
		t.Errorf("got %v, want %v", a, b)
	}
	if a, b := draw(7, lengthOfDay), draw(8, lengthOfDay); slices.Equal(a, b) {
		t.Errorf("got equal plans of two seeds, want different ones")
	}
}
