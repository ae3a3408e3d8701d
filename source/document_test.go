package source

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// documentOf returns a change that gives the facet a single document.
func documentOf(d Document) func(*Config) {
	return func(c *Config) {
		f := c.Facets["character"]
		f.Documents = map[string]Document{"doc": d}
		f.Params = TextParams(map[string]string{"ocid": "{key}", "page": "1"})
		c.Facets["character"] = f
	}
}

// hostile lists keys with characters that end a string, a form value or a template.
var hostile = []string{
	`a`, `"`, `","role":"admin`, `\`, `\"`, `\u0022`, "\n", "\x00", `{ocid}`, `}}`, `a&role=admin`, `a%26b`, `+`, `=`, "가", "\u2028", `</script>`, "\r\nX: y",
}

func TestBody_HostileKeyStaysInItsString(t *testing.T) {
	var got string
	var kind string
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got, kind = r.Method+" "+string(text), r.Header.Get("Content-Type")
		_, _ = w.Write([]byte("{}"))
	})
	asJSON := func(text string) any {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Errorf("%s: got error %v, want valid JSON", text, err)
		}
		return v
	}
	for name, c := range map[string]struct {
		document Document
		kind     string
		same     func(t *testing.T, body, key string)
	}{
		"JSON": {
			Document{Path: "/p", Method: "POST", Body: ` {"k": "<{key}>", "n": 12345678901234567890, "l": ["{ocid}", null, {"a": true}]} `},
			"application/json",
			func(t *testing.T, body, key string) {
				want := fmt.Sprint(map[string]any{"k": "<" + key + ">", "n": 12345678901234567890.0, "l": []any{key, nil, map[string]any{"a": true}}})
				if got := fmt.Sprint(asJSON(body)); got != want || !strings.Contains(body, "12345678901234567890") {
					t.Errorf("%s: got %s, want %s", body, got, want)
				}
			},
		},
		"GraphQL": {
			Document{Path: "/p", GraphQL: &GraphQL{Query: "query {viewer{login}}", Variables: map[string]any{"owner": "{key}", "first": uint64(100), "of": map[string]any{"x": []any{"{page}"}}}}},
			"application/json",
			func(t *testing.T, body, key string) {
				want := fmt.Sprint(map[string]any{"query": "query {viewer{login}}", "variables": map[string]any{"owner": key, "first": 100.0, "of": map[string]any{"x": []any{"1"}}}})
				if got := fmt.Sprint(asJSON(body)); got != want {
					t.Errorf("%s: got %s, want %s", body, got, want)
				}
			},
		},
		"GraphQL without variables": {
			Document{Path: "/p", GraphQL: &GraphQL{Query: "{a}"}},
			"application/json",
			func(t *testing.T, body, _ string) {
				if body != `{"query":"{a}","variables":{}}` {
					t.Error(body)
				}
			},
		},
		"a form": {
			Document{Path: "/p", Method: "POST", ContentType: "application/x-www-form-urlencoded; charset=utf-8", Body: "a={key}&b=x{ocid}&c="},
			"application/x-www-form-urlencoded; charset=utf-8",
			func(t *testing.T, body, key string) {
				form, err := url.ParseQuery(body)
				if want := (url.Values{"a": {key}, "b": {"x" + key}, "c": {""}}); err != nil || fmt.Sprint(form) != fmt.Sprint(want) {
					t.Errorf("%s: got %v, want %v", body, form, want)
				}
			},
		},
		"another text": {
			Document{Path: "/p", Method: "POST", ContentType: "text/xml", Body: "<a>{key}</a>"},
			"text/xml",
			func(t *testing.T, body, _ string) {
				if body != "<a>{key}</a>" {
					t.Error(body)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSource(t, at, documentOf(c.document))
			for _, key := range hostile {
				p, err := s.Plan(Request{Facet: "character", Key: key})
				if err != nil {
					t.Fatal(err)
				}
				b := &resultRecorder{}
				if _, err := s.Fetch(t.Context(), p, b); err != nil || len(b.all) != 1 || b.all[0].Status != 200 {
					t.Fatal(err, b.all)
				}
				method, body, _ := strings.Cut(got, " ")
				if method != http.MethodPost || kind != c.kind {
					t.Fatalf("got method %s and content type %q", method, kind)
				}
				c.same(t, body, key)
			}
		})
	}
}

func TestFetch_SendsConfiguredHeaders(t *testing.T) {
	var got http.Header
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = w.Write([]byte("{}"))
	})
	s := testSource(t, at, func(c *Config) {
		c.Headers = map[string]string{"User-Agent": "me/1 (a@example.org)", "X-Version": "1"}
		documentOf(Document{Path: "/p", Headers: map[string]string{"x-version": "2", "X-Entity": "id {key}", "Accept": "application/vnd.x+json"}})(c)
	})
	if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"User-Agent": "me/1 (a@example.org)", "X-Version": "2", "X-Entity": "id a", "Accept": "application/vnd.x+json", "X-Api-Key": "secret", "Accept-Encoding": "gzip",
	} {
		if got.Get(name) != want || len(got[name]) != 1 {
			t.Errorf("header %s: got %q, want %q", name, got[name], want)
		}
	}
	if _, err := s.Plan(Request{Facet: "character", Key: "a\r\nX-Api-Key: b"}); err == nil || !strings.Contains(err.Error(), "X-Entity") {
		t.Errorf("key with a line break in a header: got error %v", err)
	}
}

func TestPlan_SetsResourceAndCost(t *testing.T) {
	s := testSource(t, "http://upstream.example", documentOf(Document{
		Path: "/p?q={ocid}", Method: "POST", Cost: map[string]int{"point": 5, "call": 0}, Resource: "search",
	}))
	p, err := s.Plan(Request{Facet: "character", Key: "a", Params: map[string]string{"ocid": "b", "unknown": "c"}})
	if err != nil {
		t.Fatal(err)
	}
	const want = "{Facet:character Document:doc Method:POST Key:a Host:upstream.example Params:map[ocid:b page:1] Resource:search Costs:map[call:0 point:5] Client: Credentials:[]}"
	if got := fmt.Sprintf("%+v", p.requests[0].call); got != want {
		t.Errorf("got call %s, want %s", got, want)
	}
}

func TestFetch_DoesNotResendPOST(t *testing.T) {
	at, arrivals := flaky(t)
	s := testSource(t, at, documentOf(Document{Path: "/p", Method: "POST", Body: `{"k":"{key}"}`}))
	lost := 0
	for round := range 50 {
		b := &testPermits{}
		before := arrivals.Load()
		a, err := fetch(t, t.Context(), s, b)
		if err != nil {
			t.Fatal(err)
		}
		if got := arrivals.Load() - before; got > 1 || got > b.spent.Load() || int64(a.Calls) != b.spent.Load() {
			t.Fatalf("round %d: got %d arrivals with %d permits and %d calls counted", round, got, b.spent.Load(), a.Calls)
		}
		if s.Read(a, time.Now()).Class == Transient {
			lost++
		}
	}
	if lost < 20 {
		t.Errorf("got %d lost calls in 50 rounds, so the test checks nothing", lost)
	}
}

func TestFetch_ResentPOSTIsComplete(t *testing.T) {
	for name, auth := range map[string]Auth{"header": {Header: "X-Key"}, "query": {Query: "key"}} {
		var mu sync.Mutex
		var seen []string
		at, _ := flaky(t, func(r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, string(text)+" "+r.Header.Get("X-Key")+r.URL.Query().Get("key"))
		})
		config := testSource(t, at, documentOf(Document{
			Path: "/p", Method: "POST", Body: `["{key}"]`, Headers: map[string]string{"Idempotency-Key": "{key}"}, // the header permits resending a POST
		})).config
		config.Auth = auth
		config.Credentials = []Credential{{Name: "one", SecretEnv: "A"}, {Name: "two", SecretEnv: "B"}}
		s, err := New("test", config, map[string]string{"one": "1", "two": "2"}, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		turn := 0
		b := &credentialPermits{choose: func(c Call) string { turn++; return c.Credentials[(turn-1)%2] }}
		for range 20 {
			if _, err := fetch(t, t.Context(), s, b); err != nil {
				t.Fatal(err)
			}
		}
		mu.Lock()
		for i, got := range seen {
			if want := fmt.Sprintf(`["a"] %d`, i%2+1); got != want {
				t.Errorf("%s: call %d: got %s, want %s", name, i, got, want)
			}
		}
		if int64(len(seen)) != b.spent.Load() || len(seen) < 30 {
			t.Errorf("%s: got %d arrivals with %d permits; below 30 the test checks nothing", name, len(seen), b.spent.Load())
		}
		mu.Unlock()
	}
}

func TestRedirect_OfPOSTIsNotFollowed(t *testing.T) {
	var arrivals atomic.Int64
	at := serve(t, func(w http.ResponseWriter, r *http.Request) {
		arrivals.Add(1)
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	s := testSource(t, at, documentOf(Document{Path: "/p", Method: "POST", Body: `{}`}))
	a, err := fetch(t, t.Context(), s, &testPermits{})
	if err != nil {
		t.Fatal(err)
	}
	if o := s.Read(a, time.Now()); o.Class != Permanent || o.Status != http.StatusTemporaryRedirect || arrivals.Load() != 1 {
		t.Errorf("got %+v after %d arrivals", o, arrivals.Load())
	}
}

func TestNew_RejectsInvalidDocument(t *testing.T) {
	config := testSource(t, "http://upstream.example", nil).config
	post := func(d Document) Document { d.Method = "POST"; return d }
	for want, d := range map[string]Document{
		`doc.method: "HEAD" must be GET or POST`:                                 {Method: "HEAD"},
		"doc.body: a GET request has no body; set `method: POST`":                {Body: "{}"},
		"doc.body: not valid JSON (a {placeholder} must be within a string)":     post(Document{Body: `{"n": {key}}`}),
		"doc.body: not valid JSON: text after":                                   post(Document{Body: `{} {}`}),
		"doc.body: uses {id}, which neither params":                              post(Document{Body: `{"n": "{id}"}`}),
		"doc.body: \"{ a\" has a { without":                                      post(Document{Body: `["{ a"]`}),
		"doc.contentType: \"x/\" is not a content type":                          post(Document{Body: `{}`, ContentType: "x/"}),
		"doc.contentType: needs `body`; set `body`, or remove contentType":       post(Document{ContentType: "text/plain"}),
		"doc.graphql: a GraphQL query is always a POST request":                  {GraphQL: &GraphQL{Query: "{a}"}, Body: "{}"},
		"doc.graphql.query: is missing":                                          {GraphQL: &GraphQL{}},
		"doc.graphql.variables: uses {id}":                                       {GraphQL: &GraphQL{Query: "{a}", Variables: map[string]any{"a": "{id}"}}},
		"doc.headers.Host: this header is reserved":                              {Headers: map[string]string{"Host": "x"}},
		"doc.headers.X-API-key: this header contains the cred":                   {Headers: map[string]string{"X-API-key": "x"}},
		"doc.headers.a b: \"a b\" is not a valid header name":                    {Headers: map[string]string{"a b": "x"}},
		"doc.headers.X: the value contains a control":                            {Headers: map[string]string{"X": "a\nb"}},
		"doc.headers.x: this header is set twice":                                {Headers: map[string]string{"X": "a", "x": "b"}},
		"doc.headers.X: uses {id}":                                               {Headers: map[string]string{"X": "{id}"}},
		"doc.cost.point: -1 must not":                                            {Cost: map[string]int{"point": -1}},
		"doc.paging: set either `link: true` or":                                 {Paging: &Paging{}},
		"doc.paging: `param` and `variable` need `cursor`":                       {Paging: &Paging{Link: true, Param: "x"}},
		"doc.paging.link: not allowed for a POST":                                post(Document{Paging: &Paging{Link: true}}),
		"doc.paging: set either `param` or `variable`":                           {Paging: &Paging{Cursor: "next"}},
		"doc.paging.variable: only a graphql query":                              {Paging: &Paging{Cursor: "next", Variable: "x"}},
		"doc.paging.variable: a contains the cursor":                             {GraphQL: &GraphQL{Query: "{a}", Variables: map[string]any{"a": 1}}, Paging: &Paging{Cursor: "next", Variable: "a"}},
		"doc.paging.maxPages: 1001 must be from 1 to 1000":                       {Paging: &Paging{Link: true, MaxPages: 1001}},
		"conditional: allowed only for a GET request without paging; remove it":  {Paging: &Paging{Link: true}},
		"conditional: allowed only for a GET request without paging; remove it ": post(Document{}),
	} {
		d.Path = "/p"
		documentOf(d)(&config)
		f := config.Facets["character"]
		f.Conditional = strings.HasPrefix(want, "conditional")
		config.Facets["character"] = f
		if _, err := New("test", config, nil, 1); err == nil || !strings.Contains(err.Error(), "facets.character.") || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
	config.Headers = map[string]string{"Host": "x"}
	if _, err := New("test", config, nil, 1); err == nil || !strings.Contains(err.Error(), "headers.Host: this header is reserved") {
		t.Errorf("Host in Config.Headers: got error %v", err)
	}
}

func TestExtractVersion_DependsOnSettings(t *testing.T) {
	version := func(d Document) int64 {
		return Facet{Documents: map[string]Document{"doc": d}, Ignore: []string{"*.date"}}.ExtractVersion()
	}
	// stored is the extract version of the snapshots that earlier releases have stored. If the
	// computed version changed, every stored snapshot would count as changed.
	const stored = 5590346684189849078
	for _, same := range []Document{
		{Path: "/a"}, {Path: "/b", Method: "GET"}, {Path: "/a", Cost: map[string]int{"x": 2}, Resource: "r", Headers: map[string]string{"X": "y"}},
	} {
		if got := version(same); got != stored {
			t.Errorf("%+v: got version %d, want %d", same, got, int64(stored))
		}
	}
	query := func(v any) *GraphQL { return &GraphQL{Query: "{a}", Variables: map[string]any{"a": v}} }
	seen := map[int64]int{stored: -1}
	for i, d := range []Document{
		{Method: "POST"},
		{Method: "POST", Body: "[]"},
		{Method: "POST", Body: "[]", ContentType: "text/plain"},
		{GraphQL: query(1)},
		{GraphQL: query("1")},
		{GraphQL: &GraphQL{Query: "{b}"}},
		{Paging: &Paging{Link: true}},
		{Paging: &Paging{Link: true, Items: "a"}},
		{Paging: &Paging{Cursor: "a", Param: "b"}},
		{Paging: &Paging{Cursor: "a", Param: "c"}},
		{Paging: &Paging{Cursor: "b", Param: "c"}},
	} {
		got := version(d)
		if before, twice := seen[got]; twice {
			t.Errorf("document %d has the same version as document %d", i, before)
		}
		seen[got] = i
	}
	if version(Document{Paging: &Paging{Link: true}}) != version(Document{Method: "GET", Paging: &Paging{Link: true, MaxPages: 5}}) {
		t.Error("a setting that does not affect the content changed the version")
	}
}
