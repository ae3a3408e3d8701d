package source_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
)

// inspect fetches the key 42 of the facet "item" and returns the inspection of its document.
func inspect(t *testing.T, config source.Config, handler http.HandlerFunc) (source.Inspection, *source.Source, *source.Responses) {
	t.Helper()
	upstream := httptest.NewServer(handler)
	t.Cleanup(upstream.Close)
	config.BaseURL, config.Timeout, config.MaxBody, config.Gzip = upstream.URL, 10*time.Second, 1<<20, true
	s, err := source.New("shop", config, map[string]string{"": "s3cret-value"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	plan, err := s.Plan(source.Request{Facet: "item", Key: "42"})
	if err != nil {
		t.Fatal(err)
	}
	plan.OnePage()
	a, err := s.Fetch(t.Context(), plan, unlimited{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Inspect(a, time.Now())[0], s, a
}

func itemConfig(d source.Document, change func(*source.Facet)) source.Config {
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"item": d}
	if change != nil {
		change(&f)
	}
	return source.Config{Auth: source.Auth{Query: "api_key"}, Facets: map[string]source.Facet{"item": f}}
}

func TestInspect_HidesTheCredential(t *testing.T) {
	got, _, _ := inspect(t, itemConfig(source.Document{Path: "/items/{key}"}, nil), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("api_key") == "" {
			http.Redirect(w, r, "/items/42?api_key=s3cret-value", http.StatusFound)
			return
		}
		w.Header().Set("Link", "</items?api_key=s3cret-value>; rel=next")
		_, _ = w.Write([]byte(`{"self": "/items/42?api_key=s3cret-value"}`))
	})
	for name, text := range map[string]string{"URL": got.URL + got.Planned, "body": string(got.Body), "header": got.Header.Get("Link")} {
		if strings.Contains(text, "s3cret-value") || text == "" {
			t.Errorf("%s: got %q, want a text without the credential", name, text)
		}
	}
}

func TestInspect_NamesTheRuleThatDecided(t *testing.T) {
	config := itemConfig(source.Document{Path: "/items/{key}"}, nil)
	config.Rules = []source.Rule{{Status: 500, Class: source.Maintenance}, {Body: &source.Match{Name: "error"}, Class: source.NotReady}}
	got, _, _ := inspect(t, config, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"error": 1}`)) })
	if got.Rule != 1 {
		t.Errorf("rule: got %d, want 1", got.Rule)
	}
	if got.Class != source.NotReady {
		t.Errorf("class: got %s, want %s", got.Class, source.NotReady)
	}
}

func TestInspect_OnePageNamesTheNext(t *testing.T) {
	calls := 0
	d := source.Document{Path: "/items/{key}", Paging: &source.Paging{Link: true}}
	got, s, a := inspect(t, itemConfig(d, nil), func(w http.ResponseWriter, _ *http.Request) {
		calls++
		w.Header().Set("Link", "</items/42?page=2>; rel=next")
		_, _ = w.Write([]byte(`[{"id": 1}, {"id": 2}]`))
	})
	if !strings.HasSuffix(got.Next, "/items/42?page=2") {
		t.Errorf("next page: got %q, want /items/42?page=2", got.Next)
	}
	if calls != 1 {
		t.Errorf("calls: got %d, want 1", calls)
	}
	for path, want := range map[string]int{"item.*.id": 2, "item.0.id": 1, "item": 1, "id": 0, "item.*.nothing": 0, "": 0} {
		if n := s.CountMatches(a, path); n != want {
			t.Errorf("matches of %q: got %d, want %d", path, n, want)
		}
	}
}

func TestContent_HashedLeavesOutIgnoredValues(t *testing.T) {
	config := itemConfig(source.Document{Path: "/items/{key}"}, func(f *source.Facet) { f.Ignore = []string{"item.at", "item.list.*.id"} })
	_, s, a := inspect(t, config, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"at": 1, "list": [{"id": 1, "b": 2}, {"id": 3}], "name": "a"}`))
	})
	o := s.Read(a, time.Now())
	defer o.Content.Release()
	if got, want := string(o.Content.Hashed()), `{"item":{"list":[{"b":2},{}],"name":"a"}}`; got != want {
		t.Errorf("hashed content: got %s, want %s", got, want)
	}
}
