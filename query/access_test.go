package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
)

// routes has the requests that the tests send, by the scope that they require.
var routes = map[access.Scope][]string{
	access.Read:    {"GET /v1", "GET /v1/nexon", "GET /v1/nexon/character/a", "GET /v1/nexon/character?key=a", "GET /v1/nexon/character/a?wait=1ms", "HEAD /v1/nexon/character/a/events"},
	access.Refresh: {"POST /v1/nexon/character/a/refresh"},
	access.Admin:   {"GET /admin/v1/x", "POST /admin/v1/x", "GET /metrics", "GET /healthz?verbose", "HEAD /healthz?verbose"},
	"":             {"GET /livez", "GET /readyz", "GET /healthz", "GET /", "GET /openapi.yaml", "GET /openapi.json", "GET /docs", "GET /nothing"},
}

func TestRoutes_RequireTheirScope(t *testing.T) {
	for _, has := range []access.Scope{"", access.Read, access.Refresh, access.Admin} {
		r := newRig(t)
		r.client = access.Client{Name: "key:1", Scopes: []access.Scope{has}}
		for needs, paths := range routes {
			for _, path := range paths {
				method, path, _ := strings.Cut(path, " ")
				a := r.do(method, path)
				passes := needs == "" || needs == has || has == access.Admin
				if passes == (a.StatusCode == 403) {
					t.Errorf("%s with %q: got %d %s, want 403 without the scope", path, has, a.StatusCode, a.text)
				}
				if !passes && method != http.MethodHead && (a.body.Code != "insufficient-scope" || a.Header.Get("WWW-Authenticate") == "") {
					t.Errorf("%s: got %s %v, want insufficient-scope with WWW-Authenticate", path, a.text, a.Header)
				}
			}
		}
	}
}

func TestHealth_DetailsRequireAdminForEveryMediaType(t *testing.T) {
	r := newRig(t)
	r.client = access.Client{Name: "key:1", Scopes: []access.Scope{access.Read}}
	for _, accept := range []string{"application/json", "text/html"} {
		if a := r.do(http.MethodGet, "/healthz?verbose", "Accept", accept); a.StatusCode != 403 || a.body.Code != "insufficient-scope" {
			t.Errorf("Accept %s: got %d %s, want 403 insufficient-scope", accept, a.StatusCode, a.text)
		}
	}
}

func TestRoutes_RejectUnknownClients(t *testing.T) {
	r := newRig(t)
	p := problem.New(http.StatusUnauthorized, problem.TokenExpired, "It has expired.")
	p.Header = http.Header{"Www-Authenticate": {`Bearer error="invalid_token"`}}
	r.refused = p
	for needs, paths := range routes {
		for _, path := range paths {
			method, path, _ := strings.Cut(path, " ")
			a := r.do(method, path)
			if (a.StatusCode == 401) != (needs != "") {
				t.Errorf("%s: got %d %s, want 401 if a scope is needed", path, a.StatusCode, a.text)
			}
			if a.StatusCode == 401 && (a.Header.Get("WWW-Authenticate") == "" || (method != http.MethodHead && a.body.Code != "token-expired")) {
				t.Errorf("%s: got %s %v, want token-expired with WWW-Authenticate", path, a.text, a.Header)
			}
		}
	}
	if n := len(r.enqueued()); n > 0 || r.storeReads() > 0 {
		t.Errorf("got %d update requests and %d store reads for unauthenticated clients, want none", n, r.storeReads())
	}
}

func TestTooManyNewKeys_RefusesOnlyMissingKeys(t *testing.T) {
	r := newRig(t)
	r.respond = func(_ context.Context, w UpdateRequest) EnqueueResult {
		if !w.New {
			return EnqueueResult{Queued: true, Number: 100}
		}
		return EnqueueResult{Reason: ReasonTooMany, Until: time.Now().Add(7 * time.Second), Refused: &access.Refusal{NewKeys: true, Max: 5, Window: time.Minute, After: 7 * time.Second}}
	}
	a := r.get("new")
	if a.StatusCode != 429 || a.body.Code != "too-many-new-keys" || a.body.Freshness != freshnessMissing || a.body.Refresh.Reason != "TOO_MANY" ||
		a.Header.Get("RateLimit") == "" || a.Header.Get("Retry-After") != "7" || a.body.Refresh.Until == nil {
		t.Errorf("new: got %d %s %v, want 429 MISSING too-many-new-keys", a.StatusCode, a.text, a.Header)
	}
	r.putSnapshot("stale", 2*time.Hour)
	if a = r.get("stale"); a.StatusCode != 200 || !a.body.Refresh.Queued {
		t.Errorf("stale: got %d %s, want 200 and a queued refresh", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character?key=other"); a.StatusCode != 200 || a.body.Items[0].Status != 429 {
		t.Errorf("several: got %d %s, want an item with 429", a.StatusCode, a.text)
	}
	if a := r.refresh("stale"); a.StatusCode == 429 {
		t.Errorf("refresh: got %d %s, want that it is not refused", a.StatusCode, a.text)
	}
}

func TestTooManyRequests_RefusesReadsAndNoStop(t *testing.T) {
	r := newRig(t)
	r.exceeded["requests"] = true
	for _, path := range []string{"/v1/nexon/character/a", "/v1/nexon/character?key=a"} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 429 || a.body.Code != "too-many-requests" || a.Header.Get("RateLimit") == "" {
			t.Errorf("%s: got %d %s, want 429", path, a.StatusCode, a.text)
		}
	}
	if a := r.do(http.MethodPost, "/admin/v1/x"); a.StatusCode != 200 {
		t.Errorf("a stop: got %d, want 200", a.StatusCode)
	}
}

func TestWait_IsCountedUntilItEnds(t *testing.T) {
	r := newRig(t)
	r.get("a?wait=1ms")
	if want := []string{"requests ip:192.0.2.1 1", "wait ip:192.0.2.1", "left ip:192.0.2.1"}; !slices.Equal(r.limiterCalls, want) {
		t.Errorf("counted: got %q, want %q", r.limiterCalls, want)
	}
}

func TestWait_LimitsWaitingRequestsPerClient(t *testing.T) {
	r := newRig(t)
	r.exceeded["wait"] = true
	for _, path := range []string{"a?wait=5s", "a/events"} {
		if a := r.get(path); a.StatusCode != 429 || a.body.Code != "too-many-waiting" {
			t.Errorf("%s: got %d %s, want 429 too-many-waiting", path, a.StatusCode, a.text)
		}
	}
	r.waitUntilNoWaiters()
}

func TestTrace_DropsInvalidContext(t *testing.T) {
	r := newRig(t)
	r.get("a", "traceparent", strings.Repeat("x", 60_000))
	if w := r.enqueued()[0]; w.TraceParent != "" {
		t.Errorf("got a trace parent of %d bytes, want none", len(w.TraceParent))
	}
}

func TestCORS_AllowsOnlyListedOrigins(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.Origins = []string{"https://site.example"} })
	r.putSnapshot("a", time.Minute)
	for origin, allowed := range map[string]string{"https://site.example": "https://site.example", "https://evil.example": "", "https://site.example.evil.example": "", "": ""} {
		a := r.get("a", "Origin", origin)
		vary := strings.Join(a.Header.Values("Vary"), ", ")
		if a.StatusCode != 200 || a.Header.Get("Access-Control-Allow-Origin") != allowed || a.Header.Get("Access-Control-Allow-Credentials") != "" ||
			!strings.Contains(vary, "Accept-Encoding") || !strings.Contains(vary, "Origin") {
			t.Errorf("%q: got %d %v, want 200", origin, a.StatusCode, a.Header)
		}
	}
	if a := r.do(http.MethodGet, "/admin/v1/x", "Origin", "https://site.example"); a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers of an admin call by a page: got %v, want no Access-Control-Allow-Origin", a.Header)
	}
	r.refused = problem.New(http.StatusUnauthorized, problem.TokenMissing, "Send one.")
	a := r.do(http.MethodOptions, "/v1/nexon/character/a", "Origin", "https://site.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	if a.StatusCode != 204 || !strings.Contains(a.Header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Errorf("a preflight, which never has a token: got %d %v, want 204", a.StatusCode, a.Header)
	}
	if a := r.get("a", "Origin", "https://site.example"); a.StatusCode != 401 || a.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("a page must be able to read why it is refused: got %d %v, want 401", a.StatusCode, a.Header)
	}
}

func TestAddress_TrustsOnlyKnownProxies(t *testing.T) {
	for _, c := range []struct {
		proxies    []string
		from, xff  string
		recognised string
	}{
		{nil, "10.0.0.1:1", "203.0.113.9", "10.0.0.1"},
		{[]string{"10.0.0.0/8"}, "10.0.0.1:1", "203.0.113.9", "203.0.113.9"},
		{[]string{"10.0.0.0/8"}, "10.0.0.1:1", "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"}, // expected: the last address that does not belong to a trusted proxy, because a client can forge all addresses before it
		{[]string{"10.0.0.0/8"}, "192.0.2.7:1", "203.0.113.9", "192.0.2.7"},
		{[]string{"10.0.0.0/8"}, "127.0.0.1:1", "203.0.113.9", "127.0.0.1"},
		{[]string{"10.0.0.0/8"}, "10.0.0.1:1", "", "10.0.0.1"},
	} {
		address, err := ipExtractor(c.proxies)
		if err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.RemoteAddr = c.from
		if c.xff != "" {
			req.Header.Set("X-Forwarded-For", c.xff)
		}
		if got := address(req); got != c.recognised {
			t.Errorf("%+v: got the address %s, want %s", c, got, c.recognised)
		}
	}
	if _, err := ipExtractor([]string{"10.0.0.1"}); err == nil || !strings.Contains(err.Error(), "access.trustedProxies") {
		t.Errorf("got %v, want an error about access.trustedProxies", err)
	}
}

func TestPath_TooLongIsRejected(t *testing.T) {
	r := newRig(t)
	if a := r.do(http.MethodGet, "/v1/nexon/character?key="+strings.Repeat("k", maxPathBytes)); a.StatusCode != 414 || a.body.Code != "path-too-long" {
		t.Errorf("got %d %s, want 414 path-too-long", a.StatusCode, a.text)
	}
}
