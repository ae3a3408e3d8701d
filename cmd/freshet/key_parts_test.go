package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

// repositories is an upstream with repositories. It records the paths of its calls.
type repositories struct {
	mu     sync.Mutex
	broken bool // the repositories of the owner "broken" have no valid content
	paths  []string
}

func (r *repositories) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.paths, req.RequestURI) {
		r.paths = append(r.paths, req.RequestURI)
	}
	w.Header().Set("Content-Type", "application/json")
	if r.broken && strings.HasPrefix(req.URL.Path, "/repos/broken/") {
		_, _ = w.Write([]byte("<html>"))
		return
	}
	_, _ = w.Write([]byte(`{"path":"` + req.URL.Path + `"}`))
}

// The HTTP API, the console and the commands must accept keys that have several parts.
func TestKeysOfSeveralParts_WorkEverywhere(t *testing.T) {
	t.Parallel()
	upstream := &repositories{broken: true}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	d := startDev(t, "--no-demo", "--upstream", server.URL, "--config", write(t, `
sources:
  code:
    baseURL: http://127.0.0.1
    quota: {policies: [{name: second, limit: 500, window: 1s}]}
    facets:
      repo:
        keyPattern: "(?P<owner>[^/]+)/(?P<repo>[^/]+)"
        documents: {repo: {path: "/repos/{owner}/{repo}"}}
        cooldown: 0s
    prefetch: {facets: {repo: {}}}
`))
	d.readFresh("/v1/code/repo/golang/go")
	d.readFresh("/v1/code/repo/golang%2Ftools")
	for path, want := range map[string]string{
		"/v1/code/repo?key=golang/go&key=golang%2Ftools":       `"/repos/golang/tools"`,
		"/console/lookup?source=code&facet=repo&key=golang/go": "/repos/golang/go",
		"/console/lookup?facet=code%2Frepo&key=golang%2Fgo":    "/repos/golang/go",
		"/v1/code/repo/golang":                                 "does not match the keyPattern",
		"/v1/code/repo/golang/go/src":                          "does not match the keyPattern",
		"/v1/code/repo/golang/..":                              "may not have the part",
	} {
		if _, text := d.do(http.MethodGet, d.api+path); !strings.Contains(string(text), want) {
			t.Errorf("%s: got %s, want %q in it", path, text, want)
		}
	}
	if _, stdout, stderr := command(t, []string{"FRESHET_ADDR=" + d.api}, "snapshot", "get", "code/repo/golang/go"); !strings.Contains(stdout, "/repos/golang/go") {
		t.Errorf("snapshot get: got %q %q, want the snapshot", stdout, stderr)
	}
	d.mustRun(0, []string{"code/repo/golang/go: FRESH"}, "snapshot", "refresh", "code/repo/golang/go", "--wait", "20s")
	if status, text := d.do(http.MethodPost, d.api+"/v1/code/repo/golang/go/refresh"); status != http.StatusAccepted {
		t.Errorf("refresh: got %d %s, want 202", status, text)
	}
	d.mustRun(0, nil, "entities", "import", "--source", "code", "--facet", "repo", write(t, "key\ngolang/net\n"))
	d.mustRun(0, []string{"golang/net"}, "entities", "list", "--source", "code")
	d.mustRun(1, []string{"does not match the keyPattern"}, "entities", "import", "--source", "code", "--facet", "repo", write(t, "key\ngolang\n"))

	d.do(http.MethodGet, d.api+"/v1/code/repo/broken/repo")
	servicetest.WaitFor(t, eventTimeout, "the dead letter", func() bool {
		return strings.Contains(d.mustRun(0, nil, "dlq", "list", "-o", "jsonl"), "broken/repo")
	})
	upstream.mu.Lock()
	upstream.broken = false
	upstream.mu.Unlock()
	if _, stdout, stderr := command(t, []string{"FRESHET_ADDR=" + d.api}, "dlq", "replay", "--yes", "--key", "broken/repo"); !strings.Contains(stdout, "1 of 1 dead letters replayed") {
		t.Errorf("dlq replay: got %q %q, want one replayed dead letter", stdout, stderr)
	}
	servicetest.WaitFor(t, eventTimeout, "the replayed snapshot", func() bool {
		status, _ := d.do(http.MethodGet, d.api+"/v1/code/repo/broken/repo?wait=1s")
		return status == http.StatusOK
	})
	d.mustRun(0, nil, "snapshot", "delete", "--yes", "code/repo/golang/go")

	upstream.mu.Lock()
	defer upstream.mu.Unlock()
	// Ignore the call for golang/net: it depends on the speed of the scheduler whether this
	// imported entity was already prefetched.
	got := slices.Sorted(slices.Values(slices.DeleteFunc(upstream.paths, func(path string) bool { return path == "/repos/golang/net" })))
	if want := []string{"/repos/broken/repo", "/repos/golang/go", "/repos/golang/tools"}; !slices.Equal(got, want) {
		t.Errorf("upstream paths: got %v, want %v", got, want)
	}
}

// readFresh reads a path until its snapshot is FRESH.
func (d *dev) readFresh(path string) {
	d.Helper()
	servicetest.WaitFor(d, eventTimeout, path+" is fresh", func() bool {
		status, text := d.do(http.MethodGet, d.api+path+"?wait=30s")
		return status == http.StatusOK && strings.Contains(string(text), `"freshness":"FRESH"`)
	})
}
