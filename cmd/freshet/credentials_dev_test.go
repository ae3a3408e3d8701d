package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

// The source has two credentials, and the upstream rejects one of them. Only the breaker of the
// rejected credential opens, so the other credential fetches every entity. When the rejected
// credential's file holds a new secret, both credentials are used again.
func TestCredentials_SkipExpiredUntilFileChanges(t *testing.T) {
	var mu sync.Mutex
	calls := map[string]int{} // number of calls with each credential, by the value of the Authorization header
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret := r.Header.Get("Authorization")
		mu.Lock()
		defer mu.Unlock()
		if secret == "Bearer expired" {
			calls[secret]++
			http.Error(w, "{}", http.StatusUnauthorized)
			return
		}
		calls[secret]++
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"key":%q}`, r.URL.Path)
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	one, two := write("one", "expired"), write("two", "good")
	config := write("freshet.yaml", strings.NewReplacer("ONE", one, "TWO", two).Replace(`
sources:
  api:
    baseURL: https://api.example
    auth: {header: Authorization, prefix: "Bearer "}
    timeout: 2s
    credentials:
      - {name: one, secretFile: ONE}
      - {name: two, secretFile: TWO}
    quota: {policies: [{name: second, limit: 50, window: 1s, scope: "{credential}"}]}
    facets: {thing: {documents: {thing: {path: "/thing/{key}"}}}}
`))
	d := startDev(t, "--no-demo", "--config", config, "--upstream", upstream.URL, "--data-dir", dir)
	fetched := func(n int) {
		if status, text := d.do(http.MethodGet, fmt.Sprintf("%s/v1/api/thing/k%d?wait=25s", d.api, n)); status != http.StatusOK {
			t.Fatalf("k%d: got %d %s, want 200", n, status, text)
		}
	}
	for n := range 40 {
		fetched(n)
	}
	mu.Lock()
	if calls["Bearer expired"] > 4 || calls["Bearer good"] < 40 {
		t.Errorf("calls by credential: got %v, want at most 4 expired, at least 40 good", calls)
	}
	mu.Unlock()
	write("one", "renewed")
	n := 100
	servicetest.WaitFor(t, eventTimeout, "the renewed credential is used", func() bool {
		n++
		fetched(n)
		mu.Lock()
		defer mu.Unlock()
		return calls["Bearer renewed"] > 3
	})
}

// A secret that is read from an environment variable can't change while the process runs. The upstream
// has rejected the secret, and later accepts it again. A probe must notice this, even if the quota
// applies to the whole source and not to each credential.
func TestCredentials_ProbeRejectedOldSecret(t *testing.T) {
	t.Setenv("FIRST_TOKEN", "first")
	t.Setenv("SECOND_TOKEN", "second")
	var accepts atomic.Bool
	var refused, accepted atomic.Int64 // numbers of calls with the first credential that the upstream refused and accepted
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer first" {
			if !accepts.Load() {
				refused.Add(1)
				http.Error(w, "{}", http.StatusUnauthorized)
				return
			}
			accepted.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"key":%q}`, r.URL.Path)
	}))
	t.Cleanup(upstream.Close)
	d := startDev(t, "--no-demo", "--config", write(t, `
sources:
  api:
    baseURL: https://api.example
    auth: {header: Authorization, prefix: "Bearer "}
    timeout: 2s
    credentials:
      - {name: one, secretEnv: FIRST_TOKEN}
      - {name: two, secretEnv: SECOND_TOKEN}
    quota: {policies: [{name: second, limit: 200, window: 1s}]}
    facets: {thing: {documents: {thing: {path: "/thing/{key}"}}}}
`), "--upstream", upstream.URL, "--data-dir", t.TempDir())
	n := 0
	fetch := func() {
		n++
		if status, text := d.do(http.MethodGet, fmt.Sprintf("%s/v1/api/thing/k%d?wait=25s", d.api, n)); status != http.StatusOK {
			t.Fatalf("read of k%d: got %d %s, want 200", n, status, text)
		}
	}
	servicetest.WaitFor(t, eventTimeout, "the breaker of the credential is open", func() bool {
		fetch()
		return refused.Load() > 0 && d.sum("rate_limiter_scope_breakers_open") > 0
	})
	accepts.Store(true)
	servicetest.WaitFor(t, eventTimeout, "the credential is used again", func() bool {
		fetch()
		return accepted.Load() > 3
	})
}
