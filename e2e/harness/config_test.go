package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newTestSite returns a site without processes, for calls of Configure.
func newTestSite(t *testing.T) *Site {
	t.Helper()
	return &Site{
		Dir: t.TempDir(), Source: "reference", Facets: map[string]string{"character": "basic"},
		Redis: &Process{Address: "127.0.0.1:1"}, Database: "postgres://somebody@127.0.0.1:2/theirs",
	}
}

// configure calls Configure and returns the text of the configuration file.
func configure(t *testing.T, s *Site) string {
	t.Helper()
	if _, err := s.Configure("process", "127.0.0.1:3", ""); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(s.Dir, "process.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestConfigure_ReplacesByEdits(t *testing.T) {
	s := newTestSite(t)
	s.Edits = []string{"freshFor: 1h", "freshFor: 10s"}
	if text := configure(t, s); strings.Contains(text, "freshFor: 1h") || !strings.Contains(text, "freshFor: 10s") {
		t.Errorf("configuration: got\n%s\nwant freshFor: 10s instead of 1h", text)
	}
}

func TestConfigure_RejectsEditWithoutMatch(t *testing.T) {
	s := newTestSite(t)
	s.Edits = []string{"freshFor: 17h", "freshFor: 10s"}
	_, err := s.Configure("process", "127.0.0.1:3", "")
	if err == nil || !strings.Contains(err.Error(), `"freshFor: 17h"`) {
		t.Errorf("error: got %v, want one that names the text without a match", err)
	}
}

func TestConfigure_WritesConfiguredSources(t *testing.T) {
	s := newTestSite(t)
	s.Sources = map[string]string{"one": "baseURL: http://127.0.0.1:4", "two": "baseURL: http://127.0.0.1:5"}
	text := configure(t, s)
	const want = "sources:\n  one:\n    baseURL: http://127.0.0.1:4\n  two:\n    baseURL: http://127.0.0.1:5\n"
	if !strings.HasSuffix(text, want) {
		t.Errorf("configuration: got\n%s\nwant at its end\n%s", text, want)
	}
}
