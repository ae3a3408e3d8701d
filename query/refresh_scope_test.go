package query

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

// refreshed sends a refresh of the key a with a wait of 20 s, as a client with these scopes. It
// calls the function `end` once the update request is enqueued, and returns the response.
func (r *rig) refreshed(scopes []access.Scope, end func(), headers ...string) answer {
	r.Helper()
	r.client = access.Client{Name: "key:1", Scopes: scopes}
	r.mu.Lock()
	r.requests = nil
	r.mu.Unlock()
	answered := make(chan answer, 1)
	go func() {
		answered <- r.do(http.MethodPost, "/v1/nexon/character/a/refresh?wait=20s", headers...)
	}()
	servicetest.WaitFor(r.TB, testTimeout, "a request", func() bool { return len(r.enqueued()) > 0 })
	end()
	return <-answered
}

// showsNothing fails the test if the response contains anything about the snapshot.
func (r *rig) showsNothing(what string, a answer) {
	r.Helper()
	for _, header := range []string{"Etag", "Last-Modified", "Age", "Content-Encoding", "Vary"} {
		if got := a.Header.Get(header); got != "" {
			r.Errorf("%s: got %s: %s, want no such header", what, header, got)
		}
	}
	for _, member := range []string{"snapshot", "freshness", "lastUpdatedAt", "lastCheckedAt"} {
		if strings.Contains(a.text, member) {
			r.Errorf("%s: got %s, want no %s", what, a.text, member)
		}
	}
}

func TestRefresh_WithoutReadAnswersNoContent(t *testing.T) {
	r := newRig(t)
	only := []access.Scope{access.Refresh}
	r.putSnapshot("a", time.Minute)
	landed := func(s *store.Snapshot) { s.Version = 101 }
	for _, headers := range [][]string{nil, {"Accept-Encoding", "zstd"}, {"Prefer", "wait=20"}, {"If-None-Match", "*"}} {
		a := r.refreshed(only, func() { r.putSnapshot("a", 0, landed) }, headers...)
		if a.StatusCode != http.StatusNoContent || a.text != "" {
			t.Errorf("%v, a snapshot landed: got %d %q, want 204 without a body", headers, a.StatusCode, a.text)
		}
		r.showsNothing("a snapshot landed", a)
		r.putSnapshot("a", time.Minute)
	}
	a := r.refreshed(only, func() { r.putSnapshot("a", 0, landed, func(s *store.Snapshot) { s.NotFound = true }) })
	if a.StatusCode != http.StatusNoContent {
		t.Errorf("a not-found result landed: got %d %q, want 204", a.StatusCode, a.text)
	}
	r.showsNothing("a not-found result landed", a)

	r.putSnapshot("a", time.Minute)
	a = r.refreshed(only, func() { r.settle("a", 102) })
	if a.StatusCode != http.StatusAccepted {
		t.Errorf("the fetch failed: got %d %q, want 202", a.StatusCode, a.text)
	}
	r.showsNothing("the fetch failed", a)

	r.client = access.Client{Name: "key:1", Scopes: only}
	for _, how := range []string{"", "?wait=1ms"} {
		a = r.do(http.MethodPost, "/v1/nexon/character/a/refresh"+how)
		if a.StatusCode != http.StatusAccepted {
			t.Errorf("refresh%s: got %d %q, want 202", how, a.StatusCode, a.text)
		}
		r.showsNothing("refresh"+how, a)
	}
}

func TestRefresh_WithReadAnswersContent(t *testing.T) {
	for _, scopes := range [][]access.Scope{{access.Refresh, access.Read}, {access.Admin}} {
		r := newRig(t)
		a := r.refreshed(scopes, func() { r.putSnapshot("a", 0, func(s *store.Snapshot) { s.Version = 101 }) })
		if a.StatusCode != http.StatusOK || !strings.Contains(a.text, "snapshot") {
			t.Errorf("%v: got %d %q, want 200 with a snapshot", scopes, a.StatusCode, a.text)
		}
	}
}
