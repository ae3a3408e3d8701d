package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestKey_IsUnescapedOnceAndChecked(t *testing.T) {
	r := newRig(t)
	for path, c := range map[string]struct {
		status int
		key    string
	}{
		"a":                       {202, "a"},
		"%EA%B0%80":               {202, "가"},
		"a%2Fb":                   {202, "a/b"},
		"a%252Fb":                 {202, "a%2Fb"},
		"%3Fb":                    {202, "?b"},
		"a+b":                     {202, "a+b"},
		"%25":                     {202, "%"},
		"a%3Ab;c=d":               {202, "a:b;c=d"},
		"...":                     {202, "..."},
		"x":                       {400, ""},
		"%78":                     {400, ""},
		"..":                      {400, ""},
		"%2E%2E":                  {400, ""},
		"a%00b":                   {400, ""},
		"a%0Ab":                   {400, ""},
		"%FF":                     {400, ""},
		strings.Repeat("k", 257):  {400, ""},
		strings.Repeat("k", 9000): {400, ""},
		"":                        {404, ""},
		"a/b":                     {202, "a/b"},
		"a/":                      {404, ""},
	} {
		r.requests = nil
		a := r.get(path)
		if a.StatusCode != c.status || (c.status >= 400) != (a.Header.Get("Content-Type") == "application/problem+json") {
			t.Errorf("%.40q: got %d %s, want %d, and a problem from 400 on", path, a.StatusCode, a.text, c.status)
		}
		if c.key != "" && (len(r.requests) != 1 || r.requests[0].Entity.Key != c.key) {
			t.Errorf("%q: got the update requests %+v, want one of the key %q", path, r.requests, c.key)
		}
		if c.key == "" && len(r.requests) != 0 {
			t.Errorf("%.40q: got the update requests %+v, want none", path, r.requests)
		}
	}
}

func TestErrors_AreProblems(t *testing.T) {
	r := newRig(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { panic("a bug") }
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v1/github/character/a", 404, "no-such-source"},
		{"GET", "/v1/nexon/union/a", 404, "no-such-facet"},
		{"GET", "/nothing", 404, "no-such-path"},
		{"DELETE", "/v1/nexon/character/a", 405, "method-not-allowed"},
		{"GET", "/v1/nexon/character/a/refresh", 405, "method-not-allowed"},
		{"POST", "/v1/nexon/character/x/refresh", 400, "bad-key"},
	} {
		a := r.do(c.method, c.path)
		if a.StatusCode != c.status || a.body.Code != c.code || a.body.Status != c.status || a.Header.Get("Content-Type") != "application/problem+json" ||
			a.Header.Get("X-Correlation-Id") == "" {
			t.Errorf("%s %s: got %d %s %v, want %d, the code %v and a correlation id",
				c.method, c.path, a.StatusCode, a.text, a.Header, c.status, c.code)
		}
	}
}

func TestPanic_IsOneProblem(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute, func(s *store.Snapshot) { s.Size = -1 }) // the invalid size makes the handler panic
	for range 2 {                                                            // the second read must not use the partial body of the first read
		if a := r.get("a"); a.StatusCode != 500 || a.body.Code != "internal" || strings.Contains(a.text, "panic") {
			t.Errorf("got %d %s, want 500 internal", a.StatusCode, a.text)
		}
	}
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { panic("another") } // this panic happens in the batcher's goroutine, not in that of the HTTP handler
	if a := r.get("b"); a.StatusCode != 503 {
		t.Errorf("got %d %s, want 503", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=b"); a.StatusCode != 200 || a.body.Items[0].Status != 503 {
		t.Errorf("several: got %d %s, want 200", a.StatusCode, a.text)
	}
	r.respond = nil
	if a := r.get("c"); a.StatusCode != 202 {
		t.Errorf("afterwards: got %d, want 202", a.StatusCode)
	}
}

func TestCorrelationID_IsKeptIfPrintable(t *testing.T) {
	r := newRig(t)
	for id, kept := range map[string]bool{"abc-123": true, "": false, "a b": false, "a\tb": false, strings.Repeat("x", 129): false, "é": false} {
		if got := r.get("a", "X-Correlation-Id", id).Header.Get("X-Correlation-Id"); (got == id) != kept || got == "" {
			t.Errorf("correlation id %q: got %q, want it kept: %v", id, got, kept)
		}
	}
}

func TestRoutes_ServeDocsAndOps(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 200 || a.text != "ok" {
			t.Errorf("%s: got %d %s, want 200", path, a.StatusCode, a.text)
		}
	}
}

func FuzzPath_RequestsOnlyItsEntity(f *testing.F) {
	for _, p := range []string{"/v1/nexon/character/a", "/v1/nexon/character/..%2f..", "/v1/nexon/character/a/refresh", "/v1//character/a", "/v1/nexon/character/%", "//x/v1/nexon/character/a"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if req.URL, err = req.URL.Parse(path); err != nil || !strings.HasPrefix(req.URL.Path, "/") {
			return
		}
		r := newRig(t)
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		if rec.Code >= 500 {
			t.Fatalf("%q: got %d %s, want a status below 500", path, rec.Code, rec.Body)
		}
		for _, w := range r.requests {
			if err := w.Entity.Check(); err != nil || w.Entity.Source != "nexon" || w.Entity.Facet != "character" {
				t.Fatalf("update request of %q: got %+v, want a valid key of nexon/character", path, w)
			}
			escaped := strings.Split(req.URL.EscapedPath(), "/")
			if len(escaped) != 5 {
				t.Fatalf("segments of %q with an update request: got %d, want 5", path, len(escaped))
			}
		}
	})
}

// Every request gets a response that the OpenAPI document describes.
func FuzzResponse_MatchesOpenAPI(f *testing.F) {
	f.Add("GET", "/v1/nexon/character/fresh", "W/\"x\"", "gzip, zstd;q=0.5", "wait=0", "7.abc-0")
	f.Add("GET", "/v1/nexon/character/stale?wait=1ns", "*", "*;q=0", "wait=\"0\";x", "")
	f.Add("HEAD", "/v1/nexon/character/notfound/events", "", "", "respond-async", "-1.")
	f.Add("GET", "/v1/nexon/character?key=fresh&key=%00&key=", "", "zstd", "", "")
	f.Add("POST", "/v1/nexon/character/fresh/refresh?wait=1ns", "", "", "", "")
	f.Add("DELETE", "/v1/nexon/%2e%2e/fresh", "\"", ";;", "wait=", "")
	r := newRig(f)
	r.putSnapshot("fresh", time.Minute)
	r.putSnapshot("stale", 2*time.Hour)
	r.putSnapshot("notfound", time.Minute, func(s *store.Snapshot) { s.NotFound = true })
	waits := regexp.MustCompile(`[0-9a-zA-Z.%+]*[1-9]`)
	f.Fuzz(func(t *testing.T, method, target, none, accept, prefer, last string) {
		u, err := url.Parse("http://host" + target)
		if err != nil || !strings.HasPrefix(u.Path, "/") || waits.MatchString(u.Query().Get("wait")) || waits.MatchString(prefer) {
			return // requests with a wait are skipped, because other tests cover them
		}
		if strings.HasSuffix(u.Path, "/events") && method != http.MethodHead {
			return // event streams are skipped, because other tests cover them
		}
		req, err := http.NewRequestWithContext(t.Context(), method, u.String(), nil)
		if err != nil {
			return
		}
		req.RequestURI = target
		for name, value := range map[string]string{"If-None-Match": none, "Accept-Encoding": accept, "Prefer": prefer, "Last-Event-Id": last} {
			req.Header.Set(name, value)
		}
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		seen := &rig{TB: t}
		if a := seen.checked(req, rec); a.StatusCode >= 500 {
			t.Errorf("%s %q: got %d %s, want a status below 500", method, target, a.StatusCode, a.text)
		}
	})
}
