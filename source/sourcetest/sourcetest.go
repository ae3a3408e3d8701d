// Package sourcetest is a conformance suite for source configurations. It checks that calls go
// to the configured URLs and that each call uses its own permit. It also checks that each response
// gets the class that the upstream's documentation implies.
package sourcetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
)

// Suite describes one source to the tests.
type Suite struct {
	// Config configures the source. The suite replaces the hosts of its base URLs.
	Config     source.Config
	Credential string
	Facet      string
	// Keys are valid keys of the facet.
	Keys []string
	// Good, Changed and Same contain a body for each document of the facet. The content extracted
	// from Changed must have another hash than the content from Good. The content from Same must
	// have the same hash as the content from Good.
	Good, Changed, Same map[string]string
	// Responses are responses of the upstream with their expected classes, at least one for
	// each class of a rule in Config.
	Responses []Response
}

// Response is one response of the upstream and its expected class.
type Response struct {
	Name   string
	Status int
	Header http.Header
	Body   string
	Want   source.Class
}

// Run runs the suite as subtests of t.
func Run(t *testing.T, s Suite) {
	t.Run("targets", s.testTargets)
	t.Run("hostile keys", s.testHostileKeys)
	t.Run("content hash", s.testContent)
	t.Run("response classes", s.testResponses)
	t.Run("rule coverage", s.testRuleCoverage)
	t.Run("changed credential", s.testCredential)
}

// upstream is a test server that answers every call and records it.
type upstream struct {
	mu        sync.Mutex
	requests  []*http.Request
	bodies    [][]byte // request bodies, in the order of arrivals
	respond   func(document string) (status int, header http.Header, body string)
	documents map[string]string // name of the document, by path
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, _ := io.ReadAll(r.Body)
	u.mu.Lock()
	u.bodies = append(u.bodies, sent)
	u.requests = append(u.requests, r.Clone(context.WithoutCancel(r.Context())))
	u.mu.Unlock()
	status, header, body := u.respond(u.documents[r.URL.Path])
	maps.Copy(w.Header(), header)
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// start returns the source and an upstream that answers each call with the body of its document.
// The keys of bodies are the documents' names.
func (s Suite) start(t *testing.T, bodies map[string]string) (*source.Source, *upstream) {
	t.Helper()
	u := &upstream{documents: map[string]string{}}
	u.respond = func(document string) (int, http.Header, string) {
		return http.StatusOK, http.Header{"Content-Type": {"application/json"}}, bodies[document]
	}
	server := httptest.NewServer(u)
	t.Cleanup(server.Close)
	here, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	redirected := func(address string) *url.URL {
		base, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		base.Scheme, base.Host = here.Scheme, here.Host
		return base
	}
	config, facet := s.Config, s.Config.Facets[s.Facet]
	config.BaseURL = redirected(config.BaseURL).String()
	facet.Documents, config.Facets = maps.Clone(facet.Documents), maps.Clone(config.Facets)
	config.Facets[s.Facet] = facet
	for name, d := range facet.Documents {
		base := redirected(cmp.Or(d.BaseURL, config.BaseURL))
		if d.BaseURL != "" {
			d.BaseURL = base.String()
			facet.Documents[name] = d
		}
		path, _, _ := strings.Cut(d.Path, "?")
		u.documents[base.Path+path] = name
	}
	src, err := source.New("suite", config, map[string]string{"": s.Credential}, 16)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src, u
}

// countingPermits issues permits without limit and counts the spent permits.
type countingPermits struct {
	mu    sync.Mutex
	spent int
}

func (c *countingPermits) Acquire(context.Context, source.Call) (source.Permit, error) { return c, nil }

func (c *countingPermits) Spend(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent++
	return nil
}

func (c *countingPermits) Release()  {}
func (c *countingPermits) Written()  {}
func (c *countingPermits) Answered() {}

func (c *countingPermits) Credential() string         { return "" }
func (c *countingPermits) Finished(source.CallResult) {}

func (s Suite) fetch(t *testing.T, src *source.Source, key string) source.Outcome {
	t.Helper()
	plan, err := src.Plan(source.Request{Facet: s.Facet, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	permits := &countingPermits{}
	responses, err := src.Fetch(t.Context(), plan, permits)
	if err != nil {
		t.Fatal(err)
	}
	if responses.Calls != permits.spent {
		t.Errorf("got %d calls with %d permits", responses.Calls, permits.spent)
	}
	return src.Read(responses, time.Now())
}

func (s Suite) testTargets(t *testing.T) {
	for _, key := range s.Keys {
		src, u := s.start(t, s.Good)
		if o := s.fetch(t, src, key); o.Class != source.OK {
			t.Fatalf("key %q: got class %s (error %v), want ok", key, o.Class, o.Err)
		}
		called := map[string]int{}
		for i, r := range u.requests {
			document := u.documents[r.URL.Path]
			called[document]++
			if got := s.credential(r); s.Credential != "" && got != s.Credential {
				t.Errorf("got credential %q", got)
			}
			if !strings.Contains(r.URL.RawQuery+r.URL.Path, url.QueryEscape(key)) && !bytes.Contains(u.bodies[i], []byte(key)) {
				t.Errorf("key %q is not in the request %s", key, r.URL)
			}
			if want := s.method(document); r.Method != want {
				t.Errorf("document %s: got method %s, want %s", document, r.Method, want)
			}
		}
		if len(called) != len(s.Good) || len(u.requests) != len(s.Good) {
			t.Errorf("key %q: got calls %v, want each of the %d documents once", key, called, len(s.Good))
		}
	}
}

func (s Suite) document(name string) source.Document { return s.Config.Facets[s.Facet].Documents[name] }

// method returns the HTTP method of a document.
func (s Suite) method(document string) string {
	switch d := s.document(document); {
	case d.GraphQL != nil:
		return http.MethodPost
	case d.Method != "":
		return d.Method
	}
	return http.MethodGet
}

// credential returns the credential that a received request contains, without Auth.Prefix.
func (s Suite) credential(r *http.Request) string {
	if s.Config.Auth.Query != "" {
		return r.URL.Query().Get(s.Config.Auth.Query)
	}
	return strings.TrimPrefix(r.Header.Get(s.Config.Auth.Header), s.Config.Auth.Prefix)
}

// shapeOf formats a body without the parts that may differ between keys: the strings in JSON, and the
// values of a form.
func shapeOf(body []byte) string {
	var v any
	if json.Unmarshal(body, &v) == nil {
		return fmt.Sprint(shape(v))
	}
	if form, err := url.ParseQuery(string(body)); err == nil {
		return fmt.Sprint(slices.Sorted(maps.Keys(form)))
	}
	return string(body)
}

func shape(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = shape(v[name])
		}
	case []any:
		for i := range v {
			v[i] = shape(v[i])
		}
	case string:
		return "text"
	}
	return v
}

func (s Suite) testHostileKeys(t *testing.T) {
	src, u := s.start(t, s.Good)
	for _, key := range []string{
		"..%2F", "../x", "..", ".", "%3F", "a?b=c", "a&date=2020-01-01", "a#b", "a/b", "a%00", "a\x00", "a\r\nHost: x",
		"", " ", "+", strings.Repeat("k", 10<<10), "{ocid}", "а", "\xff",
	} {
		plan, err := src.Plan(source.Request{Facet: s.Facet, Key: key})
		if err != nil {
			continue // Plan rejects the key, so no call is made
		}
		if _, err := src.Fetch(t.Context(), plan, &countingPermits{}); err != nil {
			t.Fatal(err)
		}
	}
	shapes := map[string]string{}
	for i, r := range u.requests {
		document, known := u.documents[r.URL.Path]
		if !known {
			t.Errorf("a key changed the path to %s", r.RequestURI)
			continue
		}
		_, query, _ := strings.Cut(s.Config.Facets[s.Facet].Documents[document].Path, "?")
		want, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		got := r.URL.Query()
		got.Del(s.Config.Auth.Query)
		shape := shapeOf(u.bodies[i])
		if before, seen := shapes[document]; seen && shape != before {
			t.Errorf("a key changed the structure of the body: %s", u.bodies[i])
		}
		shapes[document] = shape
		if len(got) != len(want) {
			t.Errorf("a key changed the number of parameters: %s", r.RequestURI)
		}
		for name := range want {
			if len(got[name]) != 1 {
				t.Errorf("a key changed parameter %s: %s", name, r.RequestURI)
			}
		}
	}
}

func (s Suite) testContent(t *testing.T) {
	hashes := map[string][32]byte{}
	for name, bodies := range map[string]map[string]string{"good": s.Good, "same": s.Same, "changed": s.Changed} {
		src, _ := s.start(t, bodies)
		o := s.fetch(t, src, s.Keys[0])
		if o.Class != source.OK {
			t.Fatalf("%s: got class %s (error %v), want ok", name, o.Class, o.Err)
		}
		hashes[name] = o.Content.Hash
		for document := range s.Good {
			if !bytes.Contains(o.Content.Bytes, []byte(`"`+document+`":`)) {
				t.Errorf("document %s is not in the content", document)
			}
		}
		o.Content.Release()
	}
	if hashes["good"] != hashes["same"] {
		t.Error("Suite.Same changed the hash")
	}
	if hashes["good"] == hashes["changed"] {
		t.Error("Suite.Changed did not change the hash")
	}
}

func (s Suite) testResponses(t *testing.T) {
	for _, m := range s.Responses {
		src, u := s.start(t, s.Good)
		fetchWith := func(pairs ...string) source.Outcome {
			u.respond = func(string) (int, http.Header, string) {
				h := http.Header{}
				maps.Copy(h, m.Header)
				for i := 0; i < len(pairs); i += 2 {
					h.Set(pairs[i], pairs[i+1])
				}
				return m.Status, h, m.Body
			}
			return s.fetch(t, src, s.Keys[0])
		}
		o := fetchWith()
		if o.Class != m.Want {
			t.Errorf("%s: %d %s: got class %s (error %v), want %s", m.Name, m.Status, m.Body, o.Class, o.Err, m.Want)
			continue
		}
		if o.Class == source.OK || o.Class == source.NotModified {
			continue
		}
		// The consumer and the DLQ use these fields of the outcome for every response without
		// content.
		if o.Content != nil || o.Err == nil || o.Status != m.Status || (m.Body != "" && !strings.HasPrefix(m.Body, string(o.Sample))) || (m.Body != "") != (len(o.Sample) > 0) {
			t.Errorf("%s: Content, Err, Status or Sample of the outcome is wrong: %+v", m.Name, o)
		}
		if s.Credential != "" && o.Err != nil && strings.Contains(o.Err.Error(), s.Credential) {
			t.Errorf("%s: the error contains the credential: %v", m.Name, o.Err)
		}
		s.testRetryAfter(t, m, fetchWith)
	}
}

// testRetryAfter checks that the outcome contains the delay of Retry-After for every class of
// response. The outcome contains the time until a quota window resets only for the classes quota,
// maintenance and auth, after which other calls would be refused too.
func (s Suite) testRetryAfter(t *testing.T, m Response, fetchWith func(pairs ...string) source.Outcome) {
	t.Helper()
	refusesAll := m.Want == source.Quota || m.Want == source.Maintenance || m.Want == source.AuthRefused
	if o := fetchWith("X-RateLimit-Reset-After", "7"); o.Class != m.Want || (o.RetryAfter == 7*time.Second) != refusesAll || (o.RetryAfter == 0) == refusesAll {
		t.Errorf("%s with the end of a window: got class %s and delay %v", m.Name, o.Class, o.RetryAfter)
	}
	if o := fetchWith("Retry-After", "3"); o.RetryAfter != 3*time.Second || (refusesAll && o.Class != m.Want) {
		t.Errorf("%s with Retry-After: got class %s and delay %v", m.Name, o.Class, o.RetryAfter)
	}
}

func (s Suite) testRuleCoverage(t *testing.T) {
	for i, r := range s.Config.Rules {
		if !slices.ContainsFunc(s.Responses, func(m Response) bool { return m.Want == r.Class }) {
			t.Errorf("rules[%d] has class %s, but no entry of Suite.Responses has it", i, r.Class)
		}
	}
}

func (s Suite) testCredential(t *testing.T) {
	if s.Config.Auth.Header == "" && s.Config.Auth.Query == "" {
		t.Skip("the source has no credential")
	}
	src, u := s.start(t, s.Good)
	for _, credential := range []string{s.Credential, s.Credential + "-2"} {
		if err := src.SetCredential("", credential); err != nil {
			t.Fatal(err)
		}
		s.fetch(t, src, s.Keys[0])
		if got := s.credential(u.requests[len(u.requests)-1]); got != credential {
			t.Errorf("got credential %q", got)
		}
	}
}
