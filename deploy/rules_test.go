package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// anchors returns the anchors that GitHub generates for the headings of a Markdown document.
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
			t.Errorf("alerts called %s: got 2, want 1", r.Alert)
		}
		names[r.Record+r.Alert] = true
		if r.Alert == "" {
			continue
		}
		alerts++
		if r.Severity == "" {
			t.Errorf("%s: got no severity, want one", r.Alert)
		}
		page, anchor, _ := strings.Cut(r.Runbook, "#")
		if !strings.HasSuffix(page, "docs/runbook.md") || !there[anchor] {
			t.Errorf("%s: got runbook_url %q, want a section of docs/runbook.md", r.Alert, r.Runbook)
		}
	}
	if alerts == 0 {
		t.Error("alerts: got none, want some")
	}
}
