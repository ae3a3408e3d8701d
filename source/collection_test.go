package source_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

// listConfig returns a source with the facet "list", which is a collection.
func listConfig(c items.Collection, change func(*source.Facet)) source.Config {
	config := source.DefaultConfig()
	config.BaseURL = "http://example.com/v1"
	f := source.DefaultFacet()
	f.KeyPattern = ".+"
	f.Documents = map[string]source.Document{"list": {Path: "/lists/{key}?n=2", Paging: &source.Paging{Link: true}}}
	f.Collection = &c
	if change != nil {
		change(&f)
	}
	config.Facets = map[string]source.Facet{"list": f}
	return config
}

func TestCollection_RejectsSettings(t *testing.T) {
	cursor := func(c items.Cursor) items.Collection { return items.Collection{ID: "id", Cursor: &c} }
	for name, c := range map[string]struct {
		collection items.Collection
		change     func(*source.Facet)
		want       string
	}{
		"no id":         {items.Collection{}, nil, "collection.id: is missing"},
		"two documents": {items.Collection{ID: "id"}, func(f *source.Facet) { f.Documents["b"] = source.Document{Path: "/b"} }, "exactly one document; this one has 2"},
		"raw": {items.Collection{ID: "id"}, func(f *source.Facet) {
			f.Raw = &source.Raw{MediaType: "text/xml"}
			f.Documents = map[string]source.Document{"x": {Path: "/x"}}
		}, "not allowed with raw"},
		"immutable":                  {items.Collection{ID: "id"}, func(f *source.Facet) { f.Immutable = true }, "not allowed with immutable"},
		"alias":                      {items.Collection{ID: "id"}, func(f *source.Facet) { f.Params = map[string]source.Param{"a": {From: "b", Path: "c.d"}} }, "params with from are not supported"},
		"unknown order":              {items.Collection{ID: "id", Order: "up"}, nil, `collection.order: "up" must be`},
		"unknown deletes":            {items.Collection{ID: "id", Deletes: "all"}, nil, `collection.deletes: "all" must be`},
		"flag without path":          {items.Collection{ID: "id", Deletes: "flag"}, nil, "collection.deletedFlag: write it together"},
		"path without flag":          {items.Collection{ID: "id", DeletedFlag: "gone"}, nil, "collection.deletedFlag: write it together"},
		"negative fullEvery":         {items.Collection{ID: "id", FullEvery: -1}, nil, "must not be negative"},
		"negative maxItems":          {items.Collection{ID: "id", MaxItems: -1}, nil, "must not be negative"},
		"keep without cursor":        {items.Collection{ID: "id", Keep: time.Hour}, nil, "need a cursor"},
		"full without guard":         {items.Collection{ID: "id", Deletes: "full"}, nil, "needs shrinkGuard"},
		"full, cursor, no fullEvery": {items.Collection{ID: "id", Deletes: "full", Cursor: &items.Cursor{Field: "at", Param: "since"}}, func(f *source.Facet) { f.ShrinkGuard = 0.5 }, "needs fullEvery"},
		"order without cursor":       {items.Collection{ID: "id", Order: "asc"}, nil, "asc needs a cursor"},
		"conditional, not desc":      {items.Collection{ID: "id"}, func(f *source.Facet) { f.Conditional = true }, "collection.order: conditional needs desc"},
		"id is no path":              {items.Collection{ID: "@values.0"}, nil, "collection.id"},
		"cursor without field":       {cursor(items.Cursor{Param: "since"}), nil, "cursor.field: is missing"},
		"cursor without param":       {cursor(items.Cursor{Field: "at"}), nil, "cursor.param: is missing"},
		"negative lookback":          {cursor(items.Cursor{Field: "at", Param: "since", Lookback: -1}), nil, "cursor.lookback"},
		"param of paging": {cursor(items.Cursor{Field: "at", Param: "c"}), func(f *source.Facet) {
			f.Documents = map[string]source.Document{"list": {Path: "/x", Paging: &source.Paging{Cursor: "next", Param: "c"}}}
		}, "same as paging.param"},
		"param of graphql": {cursor(items.Cursor{Field: "at", Param: "c"}), func(f *source.Facet) {
			f.Documents = map[string]source.Document{"list": {Path: "/x", GraphQL: &source.GraphQL{Query: "{a}"}}}
		}, "not allowed for a graphql query"},
		"too many pages": {items.Collection{ID: "id"}, func(f *source.Facet) { f.Documents["list"].Paging.MaxPages = 100_001 }, "maxPages: 100001 must be from 1 to 100000"},
	} {
		_, err := source.New("test", listConfig(c.collection, c.change), nil, 1)
		if err == nil || !strings.Contains(err.Error(), "facets.list.") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	other := listConfig(items.Collection{ID: "id"}, nil)
	f := source.DefaultFacet()
	f.KeyPattern = ".+"
	f.Documents = map[string]source.Document{"a": {Path: "/a?x={x}"}}
	f.Params = map[string]source.Param{"x": {From: "list", Path: "list.count"}}
	other.Facets["user"] = f
	if _, err := source.New("test", other, nil, 1); err == nil || !strings.Contains(err.Error(), "list is a collection") {
		t.Errorf("alias of a collection: got %v", err)
	}
}

// readPage fetches one page of a list from a server that answers with respond. It returns the URI and
// the body of the request, and the outcome.
func readPage(t *testing.T, config source.Config, page items.PageRequest, respond http.HandlerFunc) (uri, body string, o source.Outcome) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.RequestURI
		text := make([]byte, r.ContentLength+1)
		n, _ := r.Body.Read(text)
		body = string(text[:n])
		respond(w, r)
	}))
	t.Cleanup(server.Close)
	config.BaseURL = server.URL + "/v1"
	s, err := source.New("test", config, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	plan, err := s.Plan(source.Request{Facet: "list", Key: "a", Page: page})
	if err != nil {
		t.Fatal(err)
	}
	responses, err := s.Fetch(context.Background(), plan, unlimited{})
	if err != nil {
		t.Fatal(err)
	}
	return uri, body, s.Read(responses, time.Now())
}

func TestCollection_ReadsItems(t *testing.T) {
	config := listConfig(items.Collection{ID: "node.id", Deletes: "flag", DeletedFlag: "gone", Order: "desc", Cursor: &items.Cursor{Field: "at"}}, func(f *source.Facet) {
		f.Select, f.Ignore = []string{"list.*.name", "list.*.seen"}, []string{"list.*.seen"}
		f.Documents["list"].Paging.Items = "data"
	})
	_, _, o := readPage(t, config, items.PageRequest{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "Thu, 26 Nov 2026 10:00:00 GMT")
		w.Header().Set("Etag", `"one"`)
		w.Header().Set("Link", `<?n=2&page=2>; rel="next"`)
		_, _ = w.Write([]byte(`{"data": [
			{"node": {"id": 7}, "seen": 1, "name": "a", "at": "2026-11-26T10:00:00+09:00"},
			{"node": {"id": "7"}, "seen": 2, "name": "a", "at": 12, "gone": true},
			{"node": {"id": "ü"}, "other": 1}]}`))
	})
	if o.Class != source.OK || o.Page == nil || len(o.Page.Items) != 3 {
		t.Fatalf("outcome: got %+v", o)
	}
	var got []string
	for _, i := range o.Page.Items {
		got = append(got, fmt.Sprintf("%s %s %s %t", i.ID, i.Content, i.Cursor, i.Deleted))
	}
	want := []string{`7 {"name":"a","seen":1} 2026-11-26T01:00:00Z false`, `7 {"name":"a","seen":2} 12 true`, `ü {}  false`}
	for n := range want {
		if got[n] != want[n] {
			t.Errorf("item %d: got %s, want %s", n, got[n], want[n])
		}
	}
	if o.Page.Items[0].Hash != o.Page.Items[1].Hash {
		t.Error("the hashes of two items differ only by an ignored value, and are not equal")
	}
	if o.Page.Next != "/v1/lists/a?n=2&page=2" || o.Page.Date.Hour() != 10 || o.Validator.ETag != `"one"` {
		t.Errorf("page: got next %s, date %v, validator %q", o.Page.Next, o.Page.Date, o.Validator.ETag)
	}
}

func TestCollection_RequestsPages(t *testing.T) {
	empty := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[]`)) }
	list := items.Collection{ID: "id", Cursor: &items.Cursor{Field: "at", Param: "since"}}
	for name, c := range map[string]struct {
		page items.PageRequest
		want string
	}{
		"first page":               {items.PageRequest{}, "/v1/lists/a?n=2"},
		"first page of new items":  {items.PageRequest{Since: "2026-01-01T00:00:00Z"}, "/v1/lists/a?n=2&since=2026-01-01T00%3A00%3A00Z"},
		"second page":              {items.PageRequest{Number: 2, Position: "/v1/lists/1%2F2?page=2&since=x"}, "/v1/lists/1%2F2?page=2&since=x"},
		"second page without path": {items.PageRequest{Number: 2, Position: "/v1"}, "/v1"},
	} {
		if uri, _, o := readPage(t, listConfig(list, nil), c.page, empty); uri != c.want || o.Class != source.OK {
			t.Errorf("%s: got %s and class %s (%v), want %s", name, uri, o.Class, o.Err, c.want)
		}
	}
	s, err := source.New("test", listConfig(list, nil), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, position := range []string{"http://evil.example/v1/x", "//evil.example/v1/x", "/other/x", "/v1/../x", "x", "/v1/%2e%2e/x"} {
		if _, err := s.Plan(source.Request{Facet: "list", Key: "a", Page: items.PageRequest{Number: 2, Position: position}}); err == nil {
			t.Errorf("position %s: got a plan, want an error", position)
		}
	}
}

func TestCollection_PagesOfGraphQL(t *testing.T) {
	config := listConfig(items.Collection{ID: "id"}, func(f *source.Facet) {
		f.Documents = map[string]source.Document{"list": {
			Path: "/graphql", GraphQL: &source.GraphQL{Query: "query($after: String) {a}"},
			Paging: &source.Paging{Cursor: "page.endCursor", Variable: "after", Items: "items"},
		}}
	})
	answer := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
	}
	_, body, o := readPage(t, config, items.PageRequest{}, answer(`{"items":[{"id":1}],"page":{"endCursor":"a\"b","hasNextPage":true}}`))
	if o.Class != source.OK || o.Page.Next != `"a\"b"` || strings.Contains(body, `a\"b`) {
		t.Fatalf("first page: got next %q, class %s, %v, body %s", o.Page.Next, o.Class, o.Err, body)
	}
	_, body, o = readPage(t, config, items.PageRequest{Number: 2, Position: o.Page.Next}, answer(`{"items":[],"page":{"endCursor":"z","hasNextPage":false}}`))
	if o.Class != source.OK || o.Page.Next != "" || !strings.Contains(body, `"after":"a\"b"`) {
		t.Errorf("second page: got next %q, class %s, %v, body %s", o.Page.Next, o.Class, o.Err, body)
	}
	_, _, o = readPage(t, config, items.PageRequest{Number: 2, Position: `"z"`}, answer(`{"items":[],"page":{"endCursor":"z","hasNextPage":true}}`))
	if o.Class != source.BadContent || !strings.Contains(o.Err.Error(), "repeats") {
		t.Errorf("page that leads to itself: got class %s, %v", o.Class, o.Err)
	}
}

func TestCollection_RedactsCredentials(t *testing.T) {
	config := listConfig(items.Collection{ID: "id"}, nil)
	config.Auth = source.Auth{Header: "X-Key"}
	config.Insecure = true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`[{"id":1,"echo":"secret-value"},{"id":2}]`))
	}))
	t.Cleanup(server.Close)
	config.BaseURL = server.URL + "/v1"
	s, err := source.New("test", config, map[string]string{"": "secret-value"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	plan, err := s.Plan(source.Request{Facet: "list", Key: "a"})
	if err != nil {
		t.Fatal(err)
	}
	responses, err := s.Fetch(t.Context(), plan, unlimited{})
	if err != nil {
		t.Fatal(err)
	}
	o := s.Read(responses, time.Now())
	if o.Redacted != 1 || strings.Contains(string(o.Page.Items[0].Content), "secret-value") {
		t.Errorf("items: got %d redacted places and %s", o.Redacted, o.Page.Items[0].Content)
	}
}
