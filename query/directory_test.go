package query

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
)

func TestList_NamesSourcesAndFacets(t *testing.T) {
	r := newRig(t)
	for path, want := range map[string]string{
		"/v1":       `{"sources":[{"source":"nexon","facets":["character","shared"]}]}`,
		"/v1/nexon": `{"source":"nexon","facets":[{"facet":"character","path":"/v1/nexon/character/{key}","keyPattern":"[^x]+","freshFor":"1h"},{"facet":"shared","path":"/v1/nexon/shared/{key}","keyPattern":"[^x]+","freshFor":"1h"}]}`,
	} {
		if a := r.do(http.MethodGet, path); a.StatusCode != 200 || strings.TrimSpace(a.text) != want {
			t.Errorf("%s: got %d %s, want 200 %s", path, a.StatusCode, a.text, want)
		}
	}
	if a := r.do(http.MethodGet, "/v1/gone"); a.StatusCode != 404 || a.body.Code != string(problem.NoSuchSource) {
		t.Errorf("unknown source: got %d %s, want 404 no-such-source", a.StatusCode, a.text)
	}
}

// TestList_HidesInvisibleSources checks that a client without see:NAME learns nothing about a source
// whose data has the visibility NAME.
func TestList_HidesInvisibleSources(t *testing.T) {
	r := newRig(t, func(r *rig) { r.limits = func(string) string { return "internal" } })
	r.client = access.Client{Name: "key:1", Scopes: []access.Scope{access.Read}}
	if a := r.do(http.MethodGet, "/v1"); strings.TrimSpace(a.text) != `{"sources":[]}` {
		t.Errorf("list: got %s, want no source", a.text)
	}
	hidden, unknown := r.do(http.MethodGet, "/v1/nexon"), r.do(http.MethodGet, "/v1/gone")
	if hidden.StatusCode != 404 || hidden.text != unknown.text {
		t.Errorf("hidden source: got %d %s, want the response for an unknown source %s", hidden.StatusCode, hidden.text, unknown.text)
	}
	if a := r.do(http.MethodGet, "/openapi.yaml"); strings.Contains(a.text, "[^x]+") {
		t.Error("contract: got the key pattern of a hidden source, want none")
	}
	r.client.Scopes = append(r.client.Scopes, access.See("internal"))
	if a := r.do(http.MethodGet, "/v1/nexon"); a.StatusCode != 200 {
		t.Errorf("with see:internal: got %d %s, want 200", a.StatusCode, a.text)
	}
}

func TestContract_HasTheConfiguration(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/openapi.yaml", "/openapi.json"} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
		req.Host = "freshet.example:8443"
		req.Header.Set("X-Forwarded-Proto", "https")
		rec := httptest.NewRecorder()
		r.server.ServeHTTP(rec, req)
		doc, err := openapi3.NewLoader().LoadFromData(rec.Body.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := doc.Validate(context.Background()); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := doc.Servers[0].URL; got != "https://freshet.example:8443" {
			t.Errorf("%s: server: got %s, want https://freshet.example:8443", path, got)
		}
		for name, want := range map[string][]any{"source": {"nexon"}, "facet": {"character", "shared"}} {
			if got := doc.Components.Parameters[name].Value.Schema.Value.Enum; !slices.Equal(got, want) {
				t.Errorf("%s: values of %s: got %v, want %v", path, name, got, want)
			}
		}
		if got := doc.Components.Parameters["key"].Value.Description; !strings.Contains(got, "`nexon/character`: `[^x]+`") {
			t.Errorf("%s: key: got %s, want the key pattern", path, got)
		}
		if len(doc.Components.Parameters) < 10 || len(doc.Paths.Map()) < 20 {
			t.Errorf("%s: got %d parameters and %d paths, want at least 10 and 20", path, len(doc.Components.Parameters), len(doc.Paths.Map()))
		}
	}
}

func TestContract_IsGenericForOtherClients(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(){
		"no token": func() { r.refused = problem.New(http.StatusUnauthorized, problem.TokenMissing, "Send one.") },
		"no scope": func() {
			r.refused, r.client = nil, access.Client{Name: "key:1", Scopes: []access.Scope{access.Refresh}}
		},
		"too many requests": func() {
			r.client, r.exceeded["requests"] = access.Client{Name: "key:1", Scopes: []access.Scope{access.Read}}, true
		},
	} {
		change()
		for path, want := range map[string][]byte{"/openapi.yaml": schemas.OpenAPI, "/openapi.json": schemas.OpenAPIJSON} {
			a := r.do(http.MethodGet, "http://127.0.0.1:8080"+path)
			if a.StatusCode != 200 || a.text != string(want) {
				t.Errorf("%s, %s: got %d with %d bytes, want 200 with the contract of %d bytes", name, path, a.StatusCode, len(a.text), len(want))
			}
		}
		r.refused, r.client = nil, everything
		delete(r.exceeded, "requests")
	}
}

func TestContract_IgnoresInvalidHosts(t *testing.T) {
	r := newRig(t)
	for host, want := range map[string]string{
		"a.example": "http://a.example", "[::1]:80": "http://[::1]:80",
		`x"><script>`: schemas.OpenAPIServer, "$(reboot)": schemas.OpenAPIServer, "a/b": schemas.OpenAPIServer, "": schemas.OpenAPIServer,
	} {
		for _, path := range []string{"/openapi.yaml", "/docs"} {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			req.Host = host
			rec := httptest.NewRecorder()
			r.server.ServeHTTP(rec, req)
			if text := rec.Body.String(); !strings.Contains(text, want) || strings.Contains(text, "<script>") || strings.Contains(text, "reboot") {
				t.Errorf("%s with host %q: got no server %s, or the invalid host", path, host, want)
			}
		}
	}
}

func TestIndex_NamesPathsThatExist(t *testing.T) {
	r := newRig(t, func(r *rig) { r.console = http.HandlerFunc(echoRequest) })
	a := r.do(http.MethodGet, "/")
	if a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		t.Fatalf("got %d %s, want 200 and a page", a.StatusCode, a.Header)
	}
	links := strings.Split(a.text, `href="`)[1:]
	for _, link := range links {
		path, _, _ := strings.Cut(link, `"`)
		if a := r.do(http.MethodGet, path); a.StatusCode != 200 {
			t.Errorf("link %s: got %d, want 200", path, a.StatusCode)
		}
	}
	if len(links) < 8 {
		t.Errorf("got %d links, want at least 8", len(links))
	}
}
