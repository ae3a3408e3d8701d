package consumer

import (
	"testing"
	"time"
)

func TestHints_NeedARunOfTheSameMember(t *testing.T) {
	const id, other = "doc.id", "doc.at"
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		results []string // changed member of each comparison, or "" for several changed members; "=" is a check without a change
		saved   int
		logged  int
	}{
		"too few":                  {[]string{id, id, id, id}, 0, 0},
		"enough":                   {[]string{id, id, id, id, id}, 1, 1},
		"more":                     {[]string{id, id, id, id, id, id, id}, 3, 1},
		"an unchanged check":       {[]string{id, id, id, id, "=", id, id, id, id}, 0, 0},
		"several members":          {[]string{id, id, id, id, "", id, id, id, id}, 0, 0},
		"another member":           {[]string{id, id, id, id, other, id, id, id, id}, 0, 0},
		"two members in turn":      {[]string{id, id, id, id, id, other, other, other, other, other, id, id, id, id, id}, 3, 2},
		"again after a quiet time": {[]string{id, id, id, id, id, "=", id, id, id, id, id}, 2, 1},
	} {
		h := NewHints(nil)
		at, saved, logged := now, 0, 0
		for _, result := range c.results {
			at = at.Add(2 * maxHintInterval)
			if result == "=" {
				h.unchanged("f", at)
				continue
			}
			if !h.due("f", at) {
				t.Errorf("%s: got no comparison after %v, want one", name, 2*maxHintInterval)
			}
			save, log := h.compared("f", result, at)
			if save {
				saved++
			}
			if log {
				logged++
			}
		}
		if saved != c.saved {
			t.Errorf("%s: got %d hints stored, want %d", name, saved, c.saved)
		}
		if logged != c.logged {
			t.Errorf("%s: got %d hints logged, want %d", name, logged, c.logged)
		}
	}
}

// A facet whose content changes in several members costs at most one comparison an hour in the long
// run.
func TestHints_RestWhileContentChanges(t *testing.T) {
	h, at, comparisons := NewHints(nil), time.Unix(1_800_000_000, 0), 0
	const day = 24 * time.Hour
	for end := at.Add(day); at.Before(end); at = at.Add(time.Second) {
		if h.due("f", at) {
			comparisons++
			h.compared("f", "", at)
		}
	}
	if limit := 24 + 8; comparisons > limit {
		t.Errorf("comparisons in a day: got %d, want at most %d", comparisons, limit)
	}
}

func TestHints_DeleteAStoredHintOnce(t *testing.T) {
	h, at := NewHints(nil), time.Unix(1_800_000_000, 0)
	if !h.unchanged("f", at) {
		t.Error("first unchanged check: got no deletion, want one of an earlier process's hint")
	}
	if h.unchanged("f", at) {
		t.Error("second unchanged check: got a deletion, want none")
	}
	for range minHintRun {
		h.compared("f", "doc.id", at)
	}
	if !h.unchanged("f", at) {
		t.Error("after a hint: got no deletion, want one")
	}
}

func TestHints_ReportABoundedNumberOfMembers(t *testing.T) {
	h, at, logged := NewHints(nil), time.Unix(1_800_000_000, 0), 0
	for _, member := range "abcdefghijklmnopqrstuvwxyz" {
		for range minHintRun {
			if _, log := h.compared("f", string(member), at); log {
				logged++
			}
		}
	}
	if logged != maxHintMembers {
		t.Errorf("members logged: got %d, want %d", logged, maxHintMembers)
	}
}
