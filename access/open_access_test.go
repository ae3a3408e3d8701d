package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

func TestOpen_EveryClientIsAdmin(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Require = Never })
	for _, headers := range [][]string{nil, {"Bearer x"}, {"Basic x"}} {
		if c, p := r.authenticate(headers...); p != nil || c.Name != "unauthenticated@192.0.2.7" || !c.May(Admin) || !c.Expires.IsZero() {
			t.Errorf("%q: %+v, %v", headers, c, p)
		}
	}
}

// calls sends a request with this Host and these headers, and returns the status and problem
// code.
func (r *rig) calls(host string, headers ...string) (status int, code problem.Code) {
	r.Helper()
	req := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/v1/nexon/character/somebody", http.NoBody)
	req.Host = host
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	c, err := r.Authenticate(req, "127.0.0.1")
	if p, refused := errors.AsType[*problem.HTTPError](err); refused {
		if c.Name != "" || len(c.Scopes) > 0 {
			r.Errorf("%s, %q: rejected, with the client %+v", host, headers, c)
		}
		return p.Status, p.Code
	}
	return 200, ""
}

func TestOpen_RejectsOtherHosts(t *testing.T) {
	hosts := map[string][]string{"127.0.0.1:8080": nil, "[::]:8080": {"query", "192.0.2.7", "2001:db8::7"}, "0.0.0.0:8080": {anyHost}}
	for _, require := range []Require{Auto, Never} {
		for listen, names := range hosts {
			if require == Auto && !Loopback(listen) {
				continue
			}
			r := newRig(t, func(c *Config) { c.Require, c.Hosts = require, names })
			if err := r.SetListenAddress(listen); err != nil {
				t.Fatal(err)
			}
			for host, among := range map[string]int{
				"127.0.0.1:8080": 0, "localhost:8080": 0, "LocalHost": 0, "[::1]:8080": 0, "": 0,
				"query:8080": 1, "Query": 1, "192.0.2.7:8080": 1, "[2001:DB8:0::7]:8080": 1, "[2001:db8::7]": 1,
				"evil.example:8080": 2, "localhost.evil.example": 2, "query.evil.example": 2, "192.0.2.8": 2, "[[localhost]]": 2, "*": 2,
			} {
				ours := among == 0 || among == 1 && len(names) > 0 || len(names) == 1
				status, code := r.calls(host)
				if (status == 200) != ours || (!ours && (status != http.StatusMisdirectedRequest || code != problem.Misdirected)) {
					t.Errorf("%s, %s, %q: got %d %s", require, listen, host, status, code)
				}
			}
		}
	}
}

func TestOpen_RejectsPagesOfOtherSites(t *testing.T) {
	for _, require := range []Require{Auto, Never} {
		r := newRig(t, func(c *Config) { c.Require, c.AllowedOrigins = require, []string{"https://app.example"} })
		if err := r.SetListenAddress("127.0.0.1:8080"); err != nil {
			t.Fatal(err)
		}
		refused := 0.
		for _, c := range []struct {
			headers []string
			passes  bool
		}{
			{nil, true}, // accepted: a client that is not a browser sends neither Origin nor Sec-Fetch-Site
			{[]string{"Sec-Fetch-Site", "none"}, true},
			{[]string{"Sec-Fetch-Site", "same-origin"}, true},
			{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:8080"}, true},
			{[]string{"Sec-Fetch-Site", "cross-site", "Origin", "https://app.example"}, true},
			{[]string{"Sec-Fetch-Site", "cross-site"}, false}, // rejected: a request for an image in a page of another site
			{[]string{"Sec-Fetch-Site", "same-site"}, false},  // rejected: a request of a page on another port of this host
			{[]string{"Sec-Fetch-Site", "same-site", "Origin", "https://127.0.0.1:8080"}, false},
			{[]string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Site", "cross-site"}, false},
			{[]string{"Origin", "http://127.0.0.1:3000"}, false},
			{[]string{"Origin", "https://evil.example"}, false},
			{[]string{"Origin", "https://app.example", "Origin", "https://evil.example"}, false},
			{[]string{"Origin", "https://app.example.evil.example"}, false},
			{[]string{"Origin", "null"}, false},
			{[]string{"Origin", ""}, false},
		} {
			status, code := r.calls("127.0.0.1:8080", c.headers...)
			if (status == 200) != c.passes || (!c.passes && (status != 403 || code != problem.CrossSite)) {
				t.Errorf("%s, %q: got %d %s", require, c.headers, status, code)
			}
			if !c.passes {
				refused++
			}
		}
		if n := testutil.ToFloat64(r.metrics.refused.WithLabelValues(string(problem.CrossSite))); n != refused {
			t.Errorf("access_refused_total: got %v, want %v", n, refused)
		}
		if status, _ := r.calls("evil.example"); status != 421 || testutil.ToFloat64(r.metrics.refused.WithLabelValues(string(problem.Misdirected))) != 1 {
			t.Errorf("got %d, not counted", status)
		}
	}
}

func TestAuthenticated_AllowsAnyHostAndOrigin(t *testing.T) {
	r := newRig(t, nil)
	_, key := r.createKey("a page", time.Time{}, "read")
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status, code := r.calls("any.example", "Authorization", "Bearer "+key, "Origin", "https://other.example", "Sec-Fetch-Site", "cross-site"); status != 200 {
		t.Errorf("got %d %s, want 200", status, code)
	}
}

func TestOpen_AdminRejectsOtherHosts(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Require = Never })
	if err := r.SetListenAddress("[::]:8080"); err != nil {
		t.Fatal(err)
	}
	for host, status := range map[string]int{"attacker.example": 421, "127.0.0.1:8080": 201} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+keysPath, strings.NewReader(`{"name":"a","scopes":["admin"]}`))
		req.Header.Set("Origin", "http://"+host)
		w := httptest.NewRecorder()
		r.Handler(func(r *http.Request) string { c, _ := ClientFromContext(r.Context()); return c.Name }).ServeHTTP(w, req)
		if w.Code != status {
			t.Errorf("%s: got %d %s", host, w.Code, w.Body)
		}
	}
}

func TestRequiresAuth_ExpiredKeysDoNotOpenTheService(t *testing.T) {
	gone := map[string]func(*rig, string){
		"expired": func(r *rig, _ string) { r.at = now.Add(2 * time.Hour) },
		"revoked": func(r *rig, id string) {
			if err := r.db.RevokeKey(r.Context(), id, "a test", now, auditEntry(actionRevoke, "a test", now, nil, &store.APIKey{})); err != nil {
				r.Fatal(err)
			}
		},
	}
	for what, end := range gone {
		r := newRig(t, func(c *Config) { c.Require = Auto })
		id, key := r.createKey("on call", now.Add(time.Hour), "admin")
		end(r, id)
		if err := r.Load(t.Context()); err != nil { // Load reads the keys again, as after a restart
			t.Fatal(err)
		}
		if err := r.SetListenAddress("127.0.0.1:8080"); err != nil || !r.AuthRequired() {
			t.Errorf("%s: got %v and no authentication", what, err)
		}
		if _, p := r.authenticate("Bearer " + key); p == nil || !strings.Contains(r.log.String(), "set access.adminTokenFile") {
			t.Errorf("%s: %v, %s", what, p, r.log.String())
		}
	}
}

func TestOpen_RejectsForwardedRequests(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Require = Auto })
	if err := r.SetListenAddress("127.0.0.1:8080"); err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{
		"X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via", "X-Forwarded-Host", "X-Forwarded-Proto", "x-forwarded-anything",
		"X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Envoy-External-Address",
	} {
		for _, value := range []string{"203.0.113.9", "127.0.0.1", ""} {
			status, code := r.calls("127.0.0.1:8080", header, value)
			if status != http.StatusForbidden || code != problem.Forwarded {
				t.Errorf("%s: %q: got %d %q, want 403 %q", header, value, status, code, problem.Forwarded)
			}
		}
	}
	if got := testutil.ToFloat64(r.metrics.refused.WithLabelValues(string(problem.Forwarded))); got != 33 {
		t.Errorf("access_refused_total{code=%q}: got %v, want 33", problem.Forwarded, got)
	}
}

func TestGuard_AdmitsForwardedRequestsWithRequireNever(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Require = Never })
	if err := r.SetListenAddress("127.0.0.1:8080"); err != nil {
		t.Fatal(err)
	}
	if status, code := r.calls("127.0.0.1:8080", "X-Forwarded-For", "203.0.113.9"); status != 200 {
		t.Errorf("got %d %q, want 200", status, code)
	}
}
