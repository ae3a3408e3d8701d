package main

import (
	"os"
	"strings"
	"testing"
)

// The example in docs/schedule.md must be a valid configuration, and config check must print its
// effects.
func TestConfigCheck_AcceptsTheExampleOfATrigger(t *testing.T) {
	text, err := os.ReadFile("../../docs/schedule.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	if !found {
		t.Fatal("docs/schedule.md: got no YAML, want some")
	}
	const facets = `    baseURL: http://court.example
    quota: {policies: [{name: second, limit: 50, window: 1s}]}
    facets:
      progress: {documents: {d: {path: "/p/{key}"}}}
      general: {documents: {d: {path: "/g/{key}"}}}
`
	code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, example+facets))
	want := "a change of progress refreshes general, once changes pause for 5m, after 30m at most\n"
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("got exit %d\n%s%s\nwant %s", code, stdout, stderr, want)
	}
}
