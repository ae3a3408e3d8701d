package trial_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/announced"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/source/trial"
)

// rig is a source with the facet "item" and the upstream that it calls.
type rig struct {
	config source.Config
	secret string
	calls  atomic.Int64
}

// run runs a trial of the key 42 against the handler.
func (r *rig) run(t *testing.T, o trial.Options, handler http.HandlerFunc) (trial.Report, error) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.calls.Add(1)
		handler(w, req)
	}))
	t.Cleanup(upstream.Close)
	r.config.BaseURL, r.config.Timeout, r.config.MaxBody = upstream.URL, 10*time.Second, 1<<16
	s, err := source.New("shop", r.config, map[string]string{"": r.secret}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return trial.Run(t.Context(), s, r.config, source.Request{Facet: "item", Key: "42"}, o)
}

func newRig(d source.Document, change func(*source.Facet)) *rig {
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"item": d}
	if change != nil {
		change(&f)
	}
	return &rig{config: source.Config{Facets: map[string]source.Facet{"item": f}}}
}

var item = source.Document{Path: "/items/{key}"}

// respond returns a handler with one response. `header` lists names and values.
func respond(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

func TestRun_AdvisesOnEachFault(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		change  func(*rig)
		class   source.Class
		advice  string
	}{
		"wrong key": {respond(401, `{}`, "Www-Authenticate", "Bearer realm=x"), func(r *rig) {
			r.config.Auth, r.secret = source.Auth{Header: "X-Api-Key", SecretEnv: "SHOP_KEY"}, "wrong-key"
		}, source.AuthRefused, "check the value of SHOP_KEY, which is sent in the header X-Api-Key; it requires Bearer"},
		"wrong key, 403":       {respond(403, `{}`), nil, source.Permanent, "no credential is configured"},
		"limit":                {respond(429, `{}`, "Retry-After", "7"), nil, source.Quota, "lower the limit in quota.policies"},
		"HTML":                 {respond(200, `<html>`, "Content-Type", "text/html"), nil, source.BadContent, "HTML, not JSON: check baseURL"},
		"HTML, 404":            {respond(404, `<html>`, "Content-Type", "text/html"), nil, source.NotFound, "check baseURL and path"},
		"empty body":           {respond(200, ``), nil, source.BadContent, "no body"},
		"no content":           {respond(204, ``), nil, source.BadContent, "only complete JSON"},
		"invalid JSON":         {respond(200, `{"a":`), nil, source.BadContent, "only complete JSON"},
		"too large":            {respond(200, `"`+strings.Repeat("a", 1<<16)+`"`), nil, source.BadContent, "larger than maxBody"},
		"redirect to a host":   {respond(301, ``, "Location", "https://www.example.com/items/42"), nil, source.Permanent, "redirects to https://www.example.com/items/42"},
		"fault":                {respond(500, `{}`), nil, source.Transient, "temporary fault"},
		"rejected":             {respond(400, `{}`), nil, source.Permanent, "rejected the request"},
		"limit above reported": {respond(200, `{}`, "X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "9", "X-RateLimit-Reset", "50"), nil, source.OK, "reports 60 calls in 1m, and policy second allows 10 in 1s"},
		"limit that no rule reads": {
			respond(200, `{}`, "X-RateLimit-Limit", "6000", "X-RateLimit-Remaining", "9", "X-RateLimit-Reset", "50"), nil, source.OK,
			"{policy: second, limit: X-RateLimit-Limit, remaining: X-RateLimit-Remaining, reset: X-RateLimit-Reset}",
		},
		"reported limit is lower": {respond(200, `{}`, "X-Limit", "5"), func(r *rig) {
			r.config.Announced = []announced.Rule{{Policy: "second", Limit: "X-Limit"}}
		}, source.OK, "reports a limit of 5, and policy second has 10"},
		"unreadable limit":     {respond(200, `{}`, "RateLimit", "limit=10, remaining=5"), nil, source.OK, "RateLimit: limit=10, remaining=5"},
		"ETag":                 {respond(200, `{}`, "Etag", `"1"`), nil, source.OK, "conditional: true"},
		"next page":            {respond(200, `[]`, "Link", "</items?page=2>; rel=next"), nil, source.OK, "paging: {link: true}"},
		"select without match": {respond(200, `{"name": 1}`), func(r *rig) { setFacet(r, func(f *source.Facet) { f.Select = []string{"item.name", "item.nothing"} }) }, source.OK, `select: "item.nothing" matches nothing in this response`},
		"ignore without match": {respond(200, `{"name": 1}`), func(r *rig) { setFacet(r, func(f *source.Facet) { f.Ignore = []string{"item.at"} }) }, source.OK, `ignore: "item.at" matches nothing`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(item, nil)
			if c.change != nil {
				c.change(r)
			}
			report, err := r.run(t, trial.Options{Limits: []trial.Limit{{Policy: "second", Calls: 10, Window: time.Second}}}, c.handler)
			if err != nil {
				t.Fatal(err)
			}
			if report.Class != string(c.class) {
				t.Errorf("class: got %s, want %s", report.Class, c.class)
			}
			if !strings.Contains(strings.Join(report.Advice, "\n"), c.advice) {
				t.Errorf("advice: got %q, want %q in it", report.Advice, c.advice)
			}
			if text := table(t, report); strings.Contains(text, "wrong-key") || !strings.Contains(text, c.advice) {
				t.Errorf("text: got %s, want the advice and no secret", text)
			}
		})
	}
}

func setFacet(r *rig, change func(*source.Facet)) {
	f := r.config.Facets["item"]
	change(&f)
	r.config.Facets["item"] = f
}

func table(t *testing.T, r trial.Report) string {
	t.Helper()
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRun_TwiceSuggestsIgnore(t *testing.T) {
	n := 0
	r := newRig(item, func(f *source.Facet) { f.Ignore = []string{"item.at"} })
	report, err := r.run(t, trial.Options{Twice: true}, func(w http.ResponseWriter, _ *http.Request) {
		n++
		_, _ = fmt.Fprintf(w, `{"at": %d, "a.b": %d, "list": [{"id": 1, "seen": %d}], "name": "x"}`, n, n, n)
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{`item.a\.b`, "item.at", "item.list.*.seen"}; !slices.Equal(report.Changed.Members, want) {
		t.Errorf("changed members: got %q, want %q", report.Changed.Members, want)
	}
	if want := []string{`item.a\.b`, "item.list.*.seen"}; !slices.Equal(report.Changed.Hashed, want) {
		t.Errorf("members that change the hash: got %q, want %q", report.Changed.Hashed, want)
	}
	if want := `ignore: [item.at, item.a\.b, item.list.*.seen]`; !strings.Contains(strings.Join(report.Advice, "\n"), want) {
		t.Errorf("advice: got %q, want %q in it", report.Advice, want)
	}
	if r.calls.Load() != 2 {
		t.Errorf("calls: got %d, want 2", r.calls.Load())
	}
}

// Two responses differ only in the members of the suggested setting `ignore`. With this setting
// both responses must have the same hash.
func TestRun_SuggestedIgnoreMakesHashesEqual(t *testing.T) {
	hashes := map[string]bool{}
	for n := range 2 {
		r := newRig(item, func(f *source.Facet) { f.Ignore = []string{`item.a\.b`, "item.list.*.seen"} })
		report, err := r.run(t, trial.Options{}, respond(200, fmt.Sprintf(`{"a.b": %d, "list": [{"id": 1, "seen": %d}]}`, n, n)))
		if err != nil {
			t.Fatal(err)
		}
		hashes[report.Hash] = true
	}
	if len(hashes) != 1 {
		t.Errorf("hashes: got %d, want 1", len(hashes))
	}
}

func TestRun_PagedDocumentCallsOnePage(t *testing.T) {
	r := newRig(source.Document{Path: "/items/{key}", Paging: &source.Paging{Cursor: "next", Param: "after", Items: "data"}}, nil)
	report, err := r.run(t, trial.Options{}, respond(200, `{"data": [1, 2], "next": "abc"}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.calls.Load() != 1 {
		t.Errorf("calls: got %d, want 1", r.calls.Load())
	}
	if next := report.Documents[0].NextPage; !strings.HasSuffix(next, "/items/42?after=abc") {
		t.Errorf("next page: got %q, want /items/42?after=abc", next)
	}
	if got := string(report.Content); got != `{"item":[1,2]}` {
		t.Errorf("content: got %s, want the items of the first page", got)
	}
}

func TestRun_CollectionShowsItems(t *testing.T) {
	d := source.Document{Path: "/items/{key}", Paging: &source.Paging{Cursor: "next", Param: "after", Items: "data"}}
	r := newRig(d, func(f *source.Facet) { f.Collection, f.Ignore = &items.Collection{ID: "id"}, []string{"item.*.seen"} })
	report, err := r.run(t, trial.Options{}, respond(200, `{"data": [{"id": 1, "seen": 5}, {"id": 2}], "next": "abc"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(report.Content), `{"item":[{"id":1,"seen":5},{"id":2}]}`; got != want || report.Hash == "" {
		t.Errorf("content: got %s with hash %q, want %s", got, report.Hash, want)
	}
	if next := report.Documents[0].NextPage; !strings.HasSuffix(next, "/items/42?after=abc") {
		t.Errorf("next page: got %q, want /items/42?after=abc", next)
	}
}

func TestRun_MissingCredentialSendsNothing(t *testing.T) {
	r, missing := newRig(item, nil), errors.New("SHOP_KEY is not set")
	_, err := r.run(t, trial.Options{Choose: func([]string) (string, error) { return "", missing }}, respond(200, `{}`))
	if !errors.Is(err, missing) {
		t.Errorf("error: got %v, want %v", err, missing)
	}
	if r.calls.Load() != 0 {
		t.Errorf("calls: got %d, want 0", r.calls.Load())
	}
}

// A redirect within the host is followed once. The number of calls never exceeds CallsPerDocument.
func TestRun_RedirectLoopStaysWithinTheBudget(t *testing.T) {
	r := newRig(item, nil)
	report, err := r.run(t, trial.Options{}, respond(302, ``, "Location", "/items/again"))
	if err != nil {
		t.Fatal(err)
	}
	if r.calls.Load() != trial.CallsPerDocument {
		t.Errorf("calls: got %d, want %d", r.calls.Load(), trial.CallsPerDocument)
	}
	if report.Class != string(source.Permanent) {
		t.Errorf("class: got %s, want %s", report.Class, source.Permanent)
	}
}

// The transport resends a request when a reused connection is closed. The budget bounds these calls.
func TestCall_ClosedConnectionsStayWithinTheBudget(t *testing.T) {
	r := newRig(item, nil)
	_, _ = r.run(t, trial.Options{}, func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.Close()
		}
	})
	if r.calls.Load() > trial.CallsPerDocument {
		t.Errorf("calls: got %d, want at most %d", r.calls.Load(), trial.CallsPerDocument)
	}
}

func TestRun_HostileTextCannotControlTheTerminal(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"body":    respond(500, "\x1b[2J\u009b31m evil"),
		"content": respond(200, "\"\u009b31m \u202e evil\""),
		"header":  respond(200, `{}`, "Etag", "\"\x9b31m\"", "X-RateLimit-Limit", "9", "X-RateLimit-Remaining", "1", "X-RateLimit-Bucket", "\u202e"),
	} {
		report, err := newRig(item, nil).run(t, trial.Options{}, handler)
		if err != nil {
			t.Fatal(err)
		}
		if text := table(t, report); strings.ContainsAny(text, "\x1b\u009b\u202e") {
			t.Errorf("%s: got %q, want a text without control characters", name, text)
		}
	}
}

func TestRun_EndOfContextEndsThePause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	done := errors.New("the user stopped the command")
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{}`))
		cancel(done)
	}))
	t.Cleanup(upstream.Close)
	r := newRig(item, nil)
	r.config.BaseURL, r.config.Timeout, r.config.MaxBody = upstream.URL, 10*time.Second, 1<<16
	s, err := source.New("shop", r.config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := trial.Run(ctx, s, r.config, source.Request{Facet: "item", Key: "42"}, trial.Options{Twice: true, Pause: time.Hour}); !errors.Is(err, done) {
		t.Errorf("error: got %v, want %v", err, done)
	}
}
