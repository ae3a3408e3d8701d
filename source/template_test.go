package source

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source/announced"
)

func testSource(t testing.TB, baseURL string, change func(*Config)) *Source {
	t.Helper()
	config := DefaultConfig()
	config.BaseURL = baseURL
	f := DefaultFacet()
	f.KeyPattern = "(?s).*"
	f.Documents = map[string]Document{"doc": {Path: "/v1/{key}/item?ocid={ocid}&date="}}
	f.Params = TextParams(map[string]string{"ocid": "{key}"})
	config.Facets = map[string]Facet{"character": f}
	config.Auth.Header = "x-api-key"
	if change != nil {
		change(&config)
	}
	s, err := New("test", config, map[string]string{"": "secret"}, 16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func FuzzPlan_KeyStaysInItsPlaceholder(f *testing.F) {
	for _, key := range []string{
		"a", "..%2F", "%3F", "&", "../..", "a/b", "a?b=c", "a#b", "\x00\r\n", "%", "%2e%2e", "ocid=1&x", "가", "+", " ",
		strings.Repeat("k", 10<<10), "a;b", `\`, "a%00b", "{key}", "\xff",
	} {
		f.Add(key, key)
	}
	s := testSource(f, "http://upstream.example/base/", nil)
	f.Fuzz(func(t *testing.T, key, ocid string) {
		p, err := s.Plan(Request{Facet: "character", Key: key, Params: map[string]string{"ocid": ocid}})
		if err != nil {
			return // Plan rejects the values, so no call is made
		}
		// Parse the request line as a server does.
		line := p.requests[0].url.RequestURI()
		if strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Fatalf("got request line %q", line)
		}
		u, err := url.ParseRequestURI(line)
		if err != nil {
			t.Fatalf("%q: got error %v", line, err)
		}
		segments := strings.Split(u.EscapedPath(), "/")
		if len(segments) != 5 || segments[1] != "base" || segments[2] != "v1" || segments[4] != "item" {
			t.Fatalf("key %q: got path %q", key, u.EscapedPath())
		}
		if got, err := url.PathUnescape(segments[3]); err != nil || got != key || got == "." || got == ".." {
			t.Fatalf("key %q: server received %q, error %v", key, got, err)
		}
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil || len(q) != 2 || len(q["ocid"]) != 1 || q.Get("ocid") != ocid || len(q["date"]) != 1 {
			t.Fatalf("parameter %q: server received %v, error %v", ocid, q, err)
		}
		if p.requests[0].url.Host != "upstream.example" || p.requests[0].url.User != nil || p.requests[0].url.Fragment != "" {
			t.Fatalf("key %q: got URL %v", key, p.requests[0].url)
		}
	})
}

func TestPlan_RejectsInvalidRequest(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		f := c.Facets["character"]
		f.KeyPattern = "[a-z.]{1,9}|.{100,}"
		c.Facets["character"] = f
	})
	for name, r := range map[string]Request{
		"unknown facet":         {Facet: "union", Key: "a"},
		"key against a pattern": {Facet: "character", Key: "A"},
		"a key within a longer": {Facet: "character", Key: "abc\n"},
		"a dot segment":         {Facet: "character", Key: ".."},
		"too long":              {Facet: "character", Key: strings.Repeat("가", 1000)},
	} {
		if p, err := s.Plan(r); err == nil {
			t.Errorf("%s: got plan %v, want an error", name, p.requests)
		}
	}
	if _, err := s.Plan(Request{Facet: "union", Key: "a"}); !strings.Contains(err.Error(), "it has character") {
		t.Errorf("got error %v, want one that lists the facets", err)
	}
}

func TestPlan_RequestParamsOverrideFacet(t *testing.T) {
	s := testSource(t, "http://upstream.example", nil)
	for want, params := range map[string]map[string]string{
		"/v1/k/item?ocid=k&date=":     nil,
		"/v1/k/item?ocid=o%2F1&date=": {"ocid": "o/1", "key": "other", "unused": "x"},
	} {
		p, err := s.Plan(Request{Facet: "character", Key: "k", Params: params})
		if err != nil || p.requests[0].url.RequestURI() != want {
			t.Errorf("params %v: got %v, error %v; want %s", params, p.requests[0].url.RequestURI(), err, want)
		}
	}
}

func TestNew_NamesWrongSetting(t *testing.T) {
	facet := func(change func(*Facet)) func(*Config) {
		return func(c *Config) {
			f := c.Facets["character"]
			change(&f)
			c.Facets["character"] = f
		}
	}
	path := func(p string) func(*Config) {
		return facet(func(f *Facet) { f.Documents = map[string]Document{"d": {Path: p}} })
	}
	for mention, change := range map[string]func(*Config){
		"baseURL":             func(c *Config) { c.BaseURL = "open.api.nexon.com" },
		"have no user, query": func(c *Config) { c.BaseURL = "https://u:p@h/?a=b" },
		"timeout":             func(c *Config) { c.Timeout = 0 },
		"maxBody":             func(c *Config) { c.MaxBody = -1 },
		"auth.header":         func(c *Config) { c.Auth.Header = "" },
		"valid header name":   func(c *Config) { c.Auth.Header = "x api key" },
		"needs at least one":  func(c *Config) { c.Facets = nil },
		"rules[0].class":      func(c *Config) { c.Rules = []Rule{{Class: "lost"}} },
		"status alone":        func(c *Config) { c.Rules = []Rule{{Class: OK}} },
		"rules[0].body: name": func(c *Config) { c.Rules = []Rule{{Class: NotFound, Body: &Match{}}} },
		"announced[1].reset": func(c *Config) {
			c.Announced = []announced.Rule{{Policy: "a", Limit: "X"}, {Policy: "b", Reset: "a b"}}
		},
		"can't be used together": func(c *Config) {
			c.Rules = []Rule{{Class: NotFound, Header: &Match{Name: "a", Equals: "b", Matches: "c"}}}
		},
		"a rule with `missing` can have neither": func(c *Config) {
			c.Rules = []Rule{{Class: NotFound, Body: &Match{Name: "a", Missing: true, Matches: "c"}}}
		},
		"missing closing":                     func(c *Config) { c.Rules = []Rule{{Class: NotFound, Header: &Match{Name: "a", Matches: "("}}} },
		"facets.character.keyPattern":         facet(func(f *Facet) { f.KeyPattern = "(" }),
		"keyPattern: \"\"":                    facet(func(f *Facet) { f.KeyPattern = "" }),
		"params.ocid: only {key}":             facet(func(f *Facet) { f.Params = TextParams(map[string]string{"ocid": "{other}"}) }),
		"choose another name":                 facet(func(f *Facet) { f.Params = TextParams(map[string]string{"ocid": "", "key": ""}) }),
		"facets.character.documents: a facet": facet(func(f *Facet) { f.Documents = nil }),
		"documents.d.baseURL: needs a scheme": facet(func(f *Facet) { f.Documents = map[string]Document{"d": {BaseURL: "asia.api.example", Path: "/v1"}} }),
		"must begin with /":                   path("v1"),
		"no fragment":                         path("/v1#x"),
		"uses {nobody}":                       path("/v1/{nobody}"),
		"literal name":                        path("/v1?{key}=1"),
		"without a {":                         path("/v1/a}b"),
		"without a name":                      path("/v1/{}"),
		"no segment":                          path("/v1/../x"),
		"invalid URL escape":                  path("/v1/%zz"),
		"select[0]":                           facet(func(f *Facet) { f.Select = []string{"a..b"} }),
		"exactly one document":                facet(func(f *Facet) { f.Conditional = true; f.Documents["x"] = Document{Path: "/x"} }),
		"freshFor":                            facet(func(f *Facet) { f.FreshFor = 0 }),
		"keepFor":                             facet(func(f *Facet) { f.KeepFor = -1 }),
		"retry[1]: 0s must be positive":       facet(func(f *Facet) { f.Retry = []time.Duration{time.Second, 0} }),
		"retry: []":                           facet(func(f *Facet) { f.Retry = []time.Duration{-time.Second} }),
		"retry: has 11 delays":                facet(func(f *Facet) { f.Retry = slices.Repeat([]time.Duration{time.Hour}, 11) }),
		"character.shrinkGuard: 1.01 must be": facet(func(f *Facet) { f.ShrinkGuard = 1.01 }),
		"shrinkGuard: -0.5":                   facet(func(f *Facet) { f.ShrinkGuard = -0.5 }),
		"shrinkGuard: NaN":                    facet(func(f *Facet) { f.ShrinkGuard = math.NaN() }),
	} {
		config := DefaultConfig()
		config.BaseURL = "http://upstream.example"
		config.Auth.Header = "x-api-key"
		f := DefaultFacet()
		f.Documents = map[string]Document{"doc": {Path: "/v1?ocid={ocid}"}}
		f.Params = TextParams(map[string]string{"ocid": "{key}"})
		config.Facets = map[string]Facet{"character": f}
		if _, err := New("test", config, map[string]string{"": "secret"}, 1); err != nil {
			t.Fatal(err)
		}
		change(&config)
		if _, err := New("test", config, map[string]string{"": "secret"}, 1); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("got error %v, want one that contains %q", err, mention)
		}
	}
}

func TestFacet_Shrunk(t *testing.T) {
	for _, c := range []struct {
		guard        float64
		size, stored int
		want         bool
	}{
		{0, 0, 1000, false},
		{0.5, 499, 1000, true},
		{0.5, 500, 1000, false},
		{0.5, 2000, 1000, false},
		{0.5, 1, 0, false}, // not shrunk, because nothing is stored
		{1, 999, 1000, true},
		{1, 1000, 1000, false},
	} {
		if got := (Facet{ShrinkGuard: c.guard}).Shrunk(c.size, c.stored); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}

func TestBytes_MarshalText(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "4096": 4096, "64KiB": 64 << 10, "128MiB": 128 << 20, "2GiB": 2 << 30, "3 MB": 3e6, "7B": 7} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err != nil || b != want {
			t.Errorf("%q: got %d, error %v", text, b, err)
		}
		written, err := b.MarshalText()
		var again Bytes
		if err != nil || again.UnmarshalText(written) != nil || again != b {
			t.Errorf("%q: got text %q, which parses as %d", text, written, again)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "ten", "99999999999GiB"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), "128MiB") {
			t.Errorf("%q: got error %v", text, err)
		}
	}
}

func TestClassify_RulesBeforeStatus(t *testing.T) {
	s := testSource(t, "http://upstream.example", func(c *Config) {
		c.Rules = []Rule{
			{Status: 400, Body: &Match{Name: "error.name", Equals: "OPENAPI00003"}, Class: NotFound},
			{Status: 400, Body: &Match{Name: "error.name", Matches: "^OPENAPI0001[01]$"}, Class: Maintenance},
			{Status: 403, Header: &Match{Name: "x-blocked"}, Class: AuthRefused},
			{ContentType: "text/html", Status: 503, Class: Maintenance},
			{Body: &Match{Name: "errors.0.type", Equals: "RATE_LIMITED"}, Class: Quota},
		}
	})
	for i, c := range []struct {
		status int
		header string
		body   string
		want   Class
	}{
		{200, "", "{}", OK},
		{200, "", `{"errors":[{"type":"RATE_LIMITED"}]}`, Quota},
		{200, "", `<html>`, OK}, // classify does not validate the content; the extraction does
		{201, "", "", BadContent},
		{204, "", "", BadContent},
		{206, "", "{}", BadContent},
		{301, "", "", Permanent},
		{304, "", "", NotModified},
		{400, "", "", Permanent},
		{400, "", `{"error":{"name":"OPENAPI00003"}}`, NotFound},
		{400, "", `{"error":{"name":"OPENAPI000030"}}`, Permanent},
		{404, "", `{"error":{"name":"OPENAPI00010"}}`, NotFound},
		{400, "", `{"error":{"name":"OPENAPI00010"}}`, Maintenance},
		{401, "", "", AuthRefused},
		{403, "", "", Permanent},
		{403, "X-Blocked:", "", AuthRefused},
		{403, "Retry-After:1", "", Quota},
		{403, "X-RateLimit-Remaining:0", "", Quota},
		{403, "X-RateLimit-Remaining:10", "", Permanent},
		{408, "", "", Transient},
		{410, "", "", NotFound},
		{422, "", "", Permanent},
		{425, "", "", Transient},
		{429, "", "", Quota},
		{500, "", "", Transient},
		{503, "", "", Transient},
		{503, "Content-Type:text/html; charset=utf-8", "", Maintenance},
		{599, "", "", Transient},
	} {
		h := http.Header{}
		if name, value, ok := strings.Cut(c.header, ":"); ok {
			h.Set(name, value)
		}
		if got := s.rules.classify(c.status, h, []byte(c.body)).class; got != c.want {
			t.Errorf("case %d: %d %s %s: got %s, want %s", i, c.status, c.header, c.body, got, c.want)
		}
	}
}
