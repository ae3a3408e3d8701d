package schemas

import (
	"strings"
	"testing"
	"time"
)

func TestCheckName_AllowsOnlySafeCharacters(t *testing.T) {
	for _, good := range []string{"nexon", "a", "github-v3", "0", strings.Repeat("x", 63)} {
		if err := CheckName("source", good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "Nexon", "a.b", "a/b", "a{b", "ä", strings.Repeat("x", 64)} {
		if CheckName("source", bad) == nil {
			t.Errorf("%q: got no error, want one", bad)
		}
	}
}

func TestTopics_MatchTheDesign(t *testing.T) {
	got := Topics("nexon")
	for i, want := range []struct {
		name       string
		partitions int32
		hours      int
	}{{"nexon.update-priority-high", 24, 24}, {"nexon.update-priority-low", 24, 72}, {"nexon.update-dlq", 12, 168}} {
		g := got[i]
		if g.Name != want.name || g.Partitions != want.partitions || g.Retention != time.Duration(want.hours)*time.Hour {
			t.Errorf("topic %d is %+v, want %+v", i, g, want)
		}
	}
	if room := got[2].MaxMessageBytes - max(got[0].MaxMessageBytes, got[1].MaxMessageBytes); room != 64<<10 {
		t.Errorf("a dead letter has %d bytes more room than its record, want 64 KiB", room)
	}
	if Group("nexon", High) != "nexon.high-worker" || Group("nexon", Low) != "nexon.low-worker" {
		t.Error("groups are named differently")
	}
}
