package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

func delegatedRequest(t *testing.T, values ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header["X-Client-Id"] = values
	return r
}

func TestDelegated_NamesEachUserOfATrustedKey(t *testing.T) {
	site := Client{Name: "key:site my site", Scopes: []Scope{Read, Delegate}}
	other := Client{Name: "key:other", Scopes: []Scope{Read, Delegate}}
	names := map[string]bool{}
	for _, from := range []Client{site, other} {
		for _, value := range []string{"alice@example.org", "bob@example.org"} {
			got, err := from.delegated("X-Client-Id", delegatedRequest(t, value))
			if err != nil {
				t.Fatal(err)
			}
			again, _ := from.delegated("X-Client-Id", delegatedRequest(t, value))
			if got.Name != again.Name || !strings.HasPrefix(got.Name, from.Name+" for ") || strings.Contains(got.Name, "example.org") {
				t.Errorf("got %q and %q of %s", got.Name, again.Name, value)
			}
			if !got.May(Read) || got.May(Refresh) {
				t.Errorf("got the scopes %v, want those of the key", got.Scopes)
			}
			names[got.ID()] = true
		}
	}
	if len(names) != 4 {
		t.Errorf("two users of two keys have %d IDs, want 4", len(names))
	}
}

func TestDelegated_IgnoresTheHeaderOfOtherKeys(t *testing.T) {
	for name, test := range map[string]struct {
		from   Client
		header string
		r      *http.Request
	}{
		"no scope":     {Client{Name: "key:a", Scopes: []Scope{Read, Refresh, Inspect}}, "X-Client-Id", delegatedRequest(t, "alice")},
		"no setting":   {Client{Name: "key:a", Scopes: []Scope{Delegate}}, "", delegatedRequest(t, "alice")},
		"no header":    {Client{Name: "key:a", Scopes: []Scope{Delegate}}, "X-Client-Id", delegatedRequest(t)},
		"empty header": {Client{Name: "key:a", Scopes: []Scope{Delegate}}, "X-Client-Id", delegatedRequest(t, "")},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := test.from.delegated(test.header, test.r); err != nil || got.Name != "key:a" {
				t.Errorf("got %q, %v; want the key itself", got.Name, err)
			}
		})
	}
}

func TestDelegated_RejectsAnInvalidHeader(t *testing.T) {
	site := Client{Name: "key:site", Scopes: []Scope{Delegate}}
	for name, r := range map[string]*http.Request{
		"twice": delegatedRequest(t, "a", "b"), "too long": delegatedRequest(t, strings.Repeat("x", maxClientHeaderSize+1)),
	} {
		_, err := site.delegated("X-Client-Id", r)
		if p, ok := errors.AsType[*problem.HTTPError](err); !ok || p.Status != http.StatusBadRequest || p.Code != problem.BadClient {
			t.Errorf("%s: got %v, want 400 %s", name, err, problem.BadClient)
		}
	}
	if _, err := site.delegated("X-Client-Id", delegatedRequest(t, strings.Repeat("x", maxClientHeaderSize))); err != nil {
		t.Errorf("maximum length: got %v", err)
	}
}

func TestID_IsSharedWithTheLimit(t *testing.T) {
	id := func(name string) string { return Client{Name: name}.ID() }
	if a, b := id("unauthenticated@2001:db8::1"), id("unauthenticated@2001:db8::2"); a != b {
		t.Errorf("two addresses of a /64: got the IDs %s and %s, want equal ones", a, b)
	}
	if a, b := id("unauthenticated@192.0.2.7"), id("unauthenticated@192.0.2.8"); a == b || len(a) != schemas.ClientIDSize {
		t.Errorf("two addresses: got the IDs %s and %s, want different ones", a, b)
	}
}

func TestRecordRefusal_NamesItsLimit(t *testing.T) {
	m, _ := newTestLimiter(Limits{})
	p, _ := errors.AsType[*problem.HTTPError](m.RecordRefusal(Refusal{Max: 45, After: 1500 * time.Millisecond}))
	if p.Status != 429 || p.Code != "too-many-outstanding" || p.Header.Get("RateLimit-Policy") != `"outstanding";q=45;qu="concurrent-requests"` {
		t.Errorf("got %+v", p)
	}
	p, _ = errors.AsType[*problem.HTTPError](m.RecordRefusal(Refusal{NewKeys: true, Max: 100, Window: time.Minute, After: time.Minute}))
	if p.Status != 429 || p.Code != "too-many-new-keys" || p.Header.Get("RateLimit-Policy") != `"new-keys";q=100;w=60` || p.After != time.Minute {
		t.Errorf("got %+v", p)
	}
}
