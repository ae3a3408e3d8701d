package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// anchors returns those of a Markdown document's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		kept := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found[strings.ReplaceAll(kept, " ", "-")] = true
	}
	return found
}

func TestAlerts_LinkToTheRunbook(t *testing.T) {
	text, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := Rules()
	if err != nil {
		t.Fatal(err)
	}
	there := anchors(string(text))
	names := map[string]bool{}
	alerts := 0
	for _, r := range rules {
		if names[r.Record+r.Alert] && r.Alert != "" {
			t.Errorf("two alerts are called %s", r.Alert)
		}
		names[r.Record+r.Alert] = true
		if r.Alert == "" {
			continue
		}
		alerts++
		if r.Severity == "" {
			t.Errorf("%s has no severity", r.Alert)
		}
		page, anchor, _ := strings.Cut(r.Runbook, "#")
		if !strings.HasSuffix(page, "docs/runbook.md") || !there[anchor] {
			t.Errorf("%s: there is no %q", r.Alert, r.Runbook)
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}
