package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// ownAPI returns a configuration whose source calls an upstream of the test, and the counter of the
// calls to this upstream.
func ownAPI(t *testing.T, auth string) (file string, calls *atomic.Int64) {
	t.Helper()
	calls = new(atomic.Int64)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = w.Write([]byte(`{"path":"` + r.URL.Path + `"}`))
	}))
	t.Cleanup(upstream.Close)
	return write(t, `sources:
  shop:
    baseURL: `+upstream.URL+`/api
    `+auth+`
    quota: {policies: [{name: second, limit: 10, window: 1s}]}
    facets: {product: {documents: {product: {path: "/products/{key}"}}}}
`), calls
}

func TestDev_CallsTheBaseURLOfAConfiguredSource(t *testing.T) {
	file, calls := ownAPI(t, "")
	d := startDev(t, "--config", file)
	status, text := d.do(http.MethodGet, d.api+"/v1/shop/product/42?wait=30s")
	if status != http.StatusOK || !strings.Contains(string(text), `"/api/products/42"`) {
		t.Errorf("read: got %d %s, want 200 and the answer of the own API", status, text)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("calls of the own API, without demo load: got %d, want 1", n)
	}
	for _, want := range []string{"baseURL of shop", "curl -i '" + d.api + "/v1/shop/product/KEY?wait=5s'"} {
		if !strings.Contains(d.text, want) {
			t.Errorf("start text: got %s, want %q in it", d.text, want)
		}
	}
}

func TestDev_SimulateCallsNoConfiguredSource(t *testing.T) {
	file, calls := ownAPI(t, "auth: {header: X-Key, secretEnv: FRESHET_TEST_UNSET_KEY}")
	d := startDev(t, "--simulate", "--config", file)
	status, text := d.do(http.MethodGet, d.api+"/v1/shop/product/42?wait=30s")
	if status != http.StatusOK || !strings.Contains(string(text), `"/api/products/42"`) {
		t.Errorf("read: got %d %s, want 200 and the simulator's answer", status, text)
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("calls of the own API: got %d, want 0", n)
	}
	if want := "simulated, needs no credential"; !strings.Contains(d.text, want) {
		t.Errorf("start text: got %s, want %q in it", d.text, want)
	}
}

func TestDev_RefusesToStartWithoutTheCredential(t *testing.T) {
	file, _ := ownAPI(t, "auth: {header: X-Key, secretEnv: FRESHET_TEST_UNSET_KEY}")
	code, _, stderr := command(t, nil, "dev", "--listen", "127.0.0.1:0", "--config", file)
	for _, want := range []string{"sources.shop.auth.secretEnv: FRESHET_TEST_UNSET_KEY is not set", "--simulate"} {
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("got exit %d and %q, want 1 and %q", code, stderr, want)
		}
	}
}

func TestDev_SimulateExcludesUpstream(t *testing.T) {
	code, _, stderr := command(t, nil, "dev", "--listen", "127.0.0.1:0", "--simulate", "--upstream", "http://127.0.0.1:1")
	if code != 2 || !strings.Contains(stderr, "exclude each other") {
		t.Errorf("got exit %d and %q, want 2 and that the flags exclude each other", code, stderr)
	}
}
