package query

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// slashKeys makes the facet of the test accept keys that contain slashes.
func slashKeys(r *rig) {
	r.settings = func(f *source.Facet) {
		f.KeyPattern = `(?P<owner>[^/]+)(?:/(?P<repo>.+))?`
		f.Params = source.TextParams(map[string]string{"repo": "none"})
		f.Documents = map[string]source.Document{"issues": {Path: "/repos/{owner}/{repo}/issues?in={repo}"}}
	}
}

func TestPath_AcceptsSlashesInKeys(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		key          string // key of the expected update request; empty means that no request is expected
		reason       schemas.Reason
	}{
		{http.MethodGet, "/golang/go", 202, "golang/go", schemas.CacheMiss},
		{http.MethodGet, "/golang%2Fgo", 202, "golang/go", schemas.CacheMiss},
		{http.MethodGet, "/golang%2fgo/src", 202, "golang/go/src", schemas.CacheMiss},
		{http.MethodGet, "/golang/a%2520b", 202, "golang/a%20b", schemas.CacheMiss},
		{http.MethodHead, "/golang/go/events", 200, "golang/go", schemas.CacheMiss},
		{http.MethodPost, "/golang/go/refresh", 202, "golang/go", schemas.UserRequest},
		{http.MethodPost, "/golang/go/%72efresh", 202, "golang/go", schemas.UserRequest},
		{http.MethodPost, "/golang%2Fgo/refresh", 202, "golang/go", schemas.UserRequest},
		{http.MethodGet, "/golang%2Frefresh", 202, "golang/refresh", schemas.CacheMiss},
		{http.MethodGet, "/golang%2Fevents", 202, "golang/events", schemas.CacheMiss},
		{http.MethodPost, "/golang/refresh/refresh", 202, "golang/refresh", schemas.UserRequest},
		{http.MethodGet, "/events", 202, "events", schemas.CacheMiss},
		{http.MethodGet, "/refresh", 202, "refresh", schemas.CacheMiss},
		{http.MethodGet, "/golang/refresh", 405, "", ""},
		{http.MethodPost, "/golang/events", 405, "", ""},
		{http.MethodPost, "/golang/go", 405, "", ""},
		{http.MethodGet, "/golang//go", 404, "", ""},
		{http.MethodGet, "/golang/go/", 404, "", ""},
		{http.MethodGet, "//golang/go", 404, "", ""},
		{http.MethodGet, "/golang/../go", 400, "", ""},
		{http.MethodGet, "/golang/%2e%2E/go", 400, "", ""},
		{http.MethodGet, "/golang/%zz", 400, "", ""},
	} {
		r := newRig(t, slashKeys)
		req := httptest.NewRequestWithContext(t.Context(), c.method, "http://host/", nil)
		req.URL.RawPath = "/v1/nexon/character" + c.path
		if req.URL.Path, _ = url.PathUnescape(req.URL.RawPath); req.URL.Path == "" {
			req.URL.Path = req.URL.RawPath
		}
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		if rec.Code != c.status {
			t.Errorf("%s %s: got status %d %s, want %d", c.method, c.path, rec.Code, rec.Body, c.status)
		}
		var key string
		var reason schemas.Reason
		for _, req := range r.enqueued() {
			key, reason = req.Entity.Key, req.Reason
		}
		if key != c.key {
			t.Errorf("%s %s: got key %q, want %q", c.method, c.path, key, c.key)
		}
		if reason != c.reason {
			t.Errorf("%s %s: got reason %q, want %q", c.method, c.path, reason, c.reason)
		}
	}
}

// If a client escapes the key as one path segment, the service must get the key and the action
// unchanged. If the client does not escape the slashes, the unescaped path must stay the same.
func FuzzEscapeKeySlashes_KeepsKeyAndAction(f *testing.F) {
	for _, key := range []string{"golang/go", "a", "a/events", "a/refresh", "events", "refresh/refresh", "a//b", "/a", "a/", "..", "a%2Fb", "a%2Frefresh", "%", "가/나", "a/%65vents"} {
		f.Add(key)
	}
	const facet = "/v1/github/issues/"
	f.Fuzz(func(t *testing.T, key string) {
		for _, action := range []string{"", "/events", "/refresh"} {
			path := facet + url.PathEscape(key) + action
			if got := escapeKeySlashes(path, noCollection); got != path {
				t.Errorf("key %q as one segment: got path %q, want %q", key, got, path)
			}
		}
		// The second case is a path with the key as it is, without escaping. `escapeKeySlashes` may
		// escape slashes of the path, but the unescaped path must stay the same.
		if _, err := url.PathUnescape(key); err != nil || strings.ContainsAny(key, "?#") {
			return
		}
		got := escapeKeySlashes(facet+key, noCollection)
		before, _ := url.PathUnescape(facet + key)
		if after, err := url.PathUnescape(got); err != nil || after != before {
			t.Errorf("path %q: got %q (%v), want the same path %q", facet+key, after, err, before)
		}
		if again := escapeKeySlashes(got, noCollection); again != got {
			t.Errorf("path %q: got %q at the second time, want %q", facet+key, again, got)
		}
		normal := strings.NewReplacer("%65", "e", "%72", "r").Replace(key)
		if a, b := escapeKeySlashes(facet+normal, noCollection), strings.NewReplacer("%65", "e", "%72", "r").Replace(got); a != b {
			t.Errorf("path %q: got %q and %q, want the same", key, a, b)
		}
	})
}

// A read must enqueue an update request only if the worker can plan the calls for its key. For
// example, a key that would change the upstream's path must be rejected, and never become a dead
// letter.
func FuzzPath_EnqueuesOnlyKeysWithPlans(f *testing.F) {
	for _, path := range []string{"golang/go", "golang%2Fgo", "a/..", "..%2F..", "a/b/refresh", "a%3Fx=1/b", "%2e%2e/b", "a/./b", "a%5C..%5Cb/c", "a/%00", "a/%ff"} {
		f.Add(path)
	}
	r := newRig(f, slashKeys)
	f.Fuzz(func(t *testing.T, path string) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
		req.URL.RawPath = "/v1/nexon/character/" + path
		var err error
		if req.URL.Path, err = url.PathUnescape(req.URL.RawPath); err != nil || strings.HasSuffix(req.URL.Path, "/events") {
			return
		}
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		if rec.Code >= 500 {
			t.Fatalf("path %q: got %d %s, want a status below 500", path, rec.Code, rec.Body)
		}
		r.mu.Lock()
		requests := r.requests
		r.requests = nil
		r.mu.Unlock()
		for _, w := range requests {
			if _, err := r.src.Plan(source.Request{Facet: w.Entity.Facet, Key: w.Entity.Key}); err != nil {
				t.Fatalf("path %q: got an update request of %q, which has no plan: %v", path, w.Entity.Key, err)
			}
		}
	})
}

func noCollection(string, string) bool { return false }

func TestEscapeKeySlashes_ItemsOfCollections(t *testing.T) {
	isCollection := func(source, facet string) bool { return source == "github" && facet == "issues" }
	for path, want := range map[string]string{
		"/v1/github/issues/golang/go/items":        "/v1/github/issues/golang%2Fgo/items",
		"/v1/github/issues/golang/go/items/7":      "/v1/github/issues/golang%2Fgo/items/7",
		"/v1/github/issues/golang/go/items/a%2Fb":  "/v1/github/issues/golang%2Fgo/items/a%2Fb",
		"/v1/github/issues/golang/go":              "/v1/github/issues/golang%2Fgo",
		"/v1/github/issues/golang%2Fitems":         "/v1/github/issues/golang%2Fitems",
		"/v1/github/issues/items":                  "/v1/github/issues/items",
		"/v1/github/issues/items/items":            "/v1/github/issues/items/items",
		"/v1/github/issues/items/items/items":      "/v1/github/issues/items%2Fitems/items",
		"/v1/github/issues/golang/go/items/events": "/v1/github/issues/golang%2Fgo%2Fitems/events",
		"/v1/github/repo/golang/go/items":          "/v1/github/repo/golang%2Fgo%2Fitems",
		"/v1/other/issues/golang/go/items/7":       "/v1/other/issues/golang%2Fgo%2Fitems%2F7",
	} {
		if got := escapeKeySlashes(path, isCollection); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}
