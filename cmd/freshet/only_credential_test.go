package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

// The source has one credential. If the upstream rejects it, all calls stop. The first probe is sent
// after 5 s, and the second probe 5 s later. So in the first eight seconds the upstream gets only one
// probe and the calls that were in flight at the rejection.
func TestCredentials_SingleOneIsProbed(t *testing.T) {
	t.Setenv("THE_ONLY_ONE", "expired")
	var first atomic.Int64
	var calls atomic.Int64 // number of calls that arrive more than 4 s after the first call
	began := time.Now()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		first.CompareAndSwap(0, int64(time.Since(began)))
		if time.Since(began)-time.Duration(first.Load()) > 4*time.Second {
			calls.Add(1)
		}
		http.Error(w, "{}", http.StatusUnauthorized)
	}))
	t.Cleanup(upstream.Close)
	dir := t.TempDir()
	d := startDev(t, "--no-demo", "--config", write(t, `
sources:
  api:
    baseURL: https://api.example
    auth: {header: Authorization, prefix: "Bearer "}
    timeout: 2s
    credentials: [{name: one, secretEnv: THE_ONLY_ONE}]
    quota: {policies: [{name: second, limit: 50, window: 1s, scope: "{credential}"}]}
    facets: {thing: {documents: {thing: {path: "/thing/{key}"}}}}
`), "--upstream", upstream.URL, "--data-dir", dir)
	for n := range 60 {
		d.do(http.MethodGet, fmt.Sprintf("%s/v1/api/thing/k%d", d.api, n))
	}
	servicetest.WaitFor(t, eventTimeout, "eight seconds are over since the first call", func() bool {
		return first.Load() > 0 && time.Since(began)-time.Duration(first.Load()) > 8*time.Second
	})
	if n := calls.Load(); n != 1 {
		t.Errorf("calls after the first pause: got %d, want 1, which probes", n)
	}
}
