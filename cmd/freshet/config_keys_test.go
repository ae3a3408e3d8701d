package main

import (
	"strings"
	"testing"
)

func TestConfigCheck_NamesUnreadableFacets(t *testing.T) {
	const source = `
sources:
  court:
    baseURL: https://api.example/v3
    quota: {policies: [{name: second, limit: 60, window: 1s}]}
    facets:
      general: {params: {token: ""}, KEY documents: {case: {path: "/case/{key}?t={token}"}}}
      progress: {documents: {case: {path: "/progress/{key}"}}}
    prefetch: {facets: {PREFETCH}}
`
	for name, c := range map[string]struct {
		key, prefetch string
		unreadable    bool
	}{
		"an open param":          {"", "", true},
		"a prefetch that is off": {"", "general: {mode: off}", true},
		"a prefetch":             {"", "general: {}", false},
		"a trigger":              {"", "progress: {triggers: {general: {}}}", false},
		"a group of the key":     {`keyPattern: "[^@]+(?:@(?P<token>.+))?",`, "", false},
	} {
		text := strings.NewReplacer("KEY", c.key, "PREFETCH", c.prefetch).Replace(source)
		code, stdout, stderr := command(t, nil, "config", "check", "--config", write(t, text))
		if code != 0 {
			t.Errorf("%s: got exit code %d %s, want 0", name, code, stderr)
		}
		if got := strings.Contains(stdout, "general can't be read: nothing provides token; "); got != c.unreadable {
			t.Errorf("%s: got a note %v, want %v: %s", name, got, c.unreadable, stdout)
		}
		if strings.Contains(stdout, "progress can't be read") {
			t.Errorf("%s: got a note on progress, want none: %s", name, stdout)
		}
	}
}

// The scope of a quota policy can be a named group of the keyPattern, such as {owner}.
func TestConfig_ScopesMayUseNamedGroups(t *testing.T) {
	code, _, stderr := command(t, nil, "config", "check", "--config", write(t, `
sources:
  code:
    baseURL: https://api.example
    quota: {policies: [{name: owner, limit: 60, window: 1m, scope: "{owner}"}]}
    facets:
      issues: {keyPattern: "(?P<owner>[^/]+)/(?P<repo>[^/]+)", documents: {issues: {path: "/repos/{owner}/{repo}/issues"}}}
`))
	if code != 0 {
		t.Errorf("exit code: got %d %s, want 0", code, stderr)
	}
}
