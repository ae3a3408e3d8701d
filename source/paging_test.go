package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// pagedUpstream serves items in pages of two items. Each page refers to the next page by a Link
// header, a cursor or a GraphQL cursor.
type pagedUpstream struct {
	items    int
	arrivals atomic.Int64
	respond  func(w http.ResponseWriter, r *http.Request, page int) (answered bool) // function that may answer in place of pagedUpstream; nil means none
	last     string                                                                 // method, URI and body of the last request
}

func (b *pagedUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.arrivals.Add(1)
	page := 1
	body, _ := io.ReadAll(r.Body)
	b.last = r.Method + " " + r.RequestURI + string(body)
	var query struct {
		Variables struct{ After *string }
	}
	_ = json.Unmarshal(body, &query)
	for _, text := range []string{r.URL.Query().Get("page"), strings.TrimPrefix(r.URL.Query().Get("after"), "&c="), deref(query.Variables.After)} {
		if n, err := strconv.Atoi(text); err == nil {
			page = n
		}
	}
	if b.respond != nil && b.respond(w, r, page) {
		return
	}
	list := []string{}
	for i := 2*page - 2; i < min(2*page, b.items); i++ {
		list = append(list, fmt.Sprintf(`{"b":%d,"a":[%d]}`, i, i))
	}
	items, next := strings.Join(list, " , "), 2*page < b.items
	switch {
	case r.Method == http.MethodPost: // in GraphQL even the last page has a cursor
		_, _ = fmt.Fprintf(w, `{"data":{"all":{"edges":[%s],"pageInfo":{"endCursor":"%d","hasNextPage":%v}}}}`, items, page+1, next)
	case r.URL.Query().Has("link"):
		if next { // the path of the link differs from the path of the first page, as in GitHub's links
			w.Header().Add("Link", `<http://x.example/,>; rel=prev; title="a, <b>; rel=next"`)
			w.Header().Add("Link", fmt.Sprintf(`<http://%s/repositories/7/issues?link=&page=%d&key=s3cret>; REL="last Next"`, r.Host, page+1))
		}
		_, _ = fmt.Fprintf(w, ` [ %s ] `, items)
	default:
		cursor := "null"
		if next {
			cursor = fmt.Sprintf(`"&c=%d"`, page+1)
		}
		_, _ = fmt.Fprintf(w, `{"of":{"list":[%s]},"next":%s}`, items, cursor)
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

var (
	byLink   = Document{Path: "/repos/{key}/issues?link=", Paging: &Paging{Link: true}}
	byCursor = Document{Path: "/list?after=&q={key}", Paging: &Paging{Cursor: "next", Param: "after", Items: "of.list"}}
	byQuery  = Document{Path: "/graphql", GraphQL: &GraphQL{Query: "{all}", Variables: map[string]any{"id": "{key}"}}, Paging: &Paging{
		Cursor: "data.all.pageInfo.endCursor", Variable: "after", Items: "data.all.edges",
	}}
	pagings = map[string]Document{"link": byLink, "cursor": byCursor, "query": byQuery}
)

func TestPaging_JoinsItemsInOrder(t *testing.T) {
	for name, d := range pagings {
		for _, items := range []int{0, 1, 2, 5, 20} {
			b := &pagedUpstream{items: items}
			s := testSource(t, serve(t, b.ServeHTTP), documentOf(d))
			p, err := s.Plan(Request{Facet: "character", Key: `"a`})
			if err != nil {
				t.Fatal(err)
			}
			permits := &resultRecorder{}
			a, err := s.Fetch(t.Context(), p, permits)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{}
			for i := range items {
				want = append(want, fmt.Sprintf(`{"a":[%d],"b":%d}`, i, i))
			}
			o := s.Read(a, time.Now())
			if o.Class != OK || string(o.Content.Bytes) != `{"doc":[`+strings.Join(want, ",")+`]}` {
				t.Fatalf("%s with %d items: got outcome %+v", name, items, o)
			}
			pages := int64(max(1, (items+1)/2))
			if n := permits.spent.Load(); n != pages || b.arrivals.Load() != pages || int64(a.Calls) != pages || len(permits.all) != int(pages) || permits.unfinished.Load() != 0 {
				t.Errorf("%s with %d items: got %d arrivals with %d permits, %d calls counted, %d finished", name, items, b.arrivals.Load(), n, a.Calls, len(permits.all))
			}
			if o.Validator != (Validator{}) || p.Calls() != 1 || a.Bytes() == 0 {
				t.Errorf("%s: got validator %+v, at least %d calls, %d bytes", name, o.Validator, p.Calls(), a.Bytes())
			}
			if items < 5 {
				continue
			}
			if want := map[string]string{
				"link":   fmt.Sprintf("GET /repositories/7/issues?link=&page=%d&key=s3cret", pages),
				"cursor": fmt.Sprintf("GET /list?q=%%22a&after=%%26c%%3D%d", pages),
				"query":  fmt.Sprintf(`POST /graphql{"query":"{all}","variables":{"after":"%d","id":"\"a"}}`, pages),
			}[name]; b.last != want {
				t.Errorf("got request %s for the last page, want %s", b.last, want)
			}
		}
	}
}

func TestPaging_EachPageUsesPermitsCredential(t *testing.T) {
	b := &pagedUpstream{items: 3}
	s := testSource(t, serve(t, b.ServeHTTP), func(c *Config) { documentOf(byLink)(c); c.Auth = Auth{Query: "key"} })
	if err := s.SetCredential("", "mine"); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(t, t.Context(), s, &testPermits{}); err != nil {
		t.Fatal(err)
	}
	if want := "GET /repositories/7/issues?link=&page=2&key=mine"; b.last != want {
		t.Errorf("got request %s for the second page, want %s", b.last, want)
	}
}

func TestPaging_LoopIsFoundWithoutCredential(t *testing.T) {
	b := &pagedUpstream{respond: func(w http.ResponseWriter, r *http.Request, _ int) bool {
		w.Header().Set("Link", fmt.Sprintf("<http://%s/repos/a/issues?link=&key=%s>; rel=next", r.Host, r.URL.Query().Get("key")))
		_, _ = w.Write([]byte("[]"))
		return true
	}}
	s := testSource(t, serve(t, b.ServeHTTP), func(c *Config) { documentOf(byLink)(c); c.Auth = Auth{Query: "key"} })
	if err := s.SetCredential("", "mine"); err != nil {
		t.Fatal(err)
	}
	a, err := fetch(t, t.Context(), s, &testPermits{})
	if err != nil || s.Read(a, time.Now()).Class != BadContent || b.arrivals.Load() != 1 {
		t.Errorf("got %+v, error %v after %d arrivals", a, err, b.arrivals.Load())
	}
}

func TestPaging_FailedPageDecides(t *testing.T) {
	for name, d := range pagings {
		for want, c := range map[string]struct {
			class   Class
			respond func(w http.ResponseWriter, r *http.Request, page int) bool
		}{
			"page 2: the upstream answered 429": {Quota, func(w http.ResponseWriter, _ *http.Request, page int) bool {
				if page == 2 {
					w.WriteHeader(http.StatusTooManyRequests)
				}
				return page == 2
			}},
			"page 3: not valid JSON at byte 1": {BadContent, func(w http.ResponseWriter, _ *http.Request, page int) bool {
				if page == 3 {
					_, _ = w.Write([]byte(`[<html>`))
				}
				return page == 3
			}},
			"page 2: the page ": {BadContent, func(w http.ResponseWriter, _ *http.Request, page int) bool {
				if page == 2 {
					_, _ = w.Write([]byte(`{"of":1}`))
				}
				return page == 2
			}},
			"page 1: the upstream answered 404": {NotFound, func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				w.WriteHeader(http.StatusNotFound)
				return true
			}},
		} {
			b := &pagedUpstream{items: 9, respond: c.respond}
			s := testSource(t, serve(t, b.ServeHTTP), documentOf(d))
			permits := &testPermits{}
			a, err := fetch(t, t.Context(), s, permits)
			if err != nil {
				t.Fatal(err)
			}
			o := s.Read(a, time.Now())
			page, _ := strconv.Atoi(want[5:6])
			if o.Class != c.class || !strings.Contains(o.Err.Error(), want) || permits.spent.Load() != int64(page) || o.Permit == nil {
				t.Errorf("%s: got %s after %d calls, error %v, want %s", name, o.Class, permits.spent.Load(), o.Err, want)
			}
		}
	}
}

func TestPaging_MissingPermitFailsFetch(t *testing.T) {
	b := &pagedUpstream{items: 9}
	s := testSource(t, serve(t, b.ServeHTTP), documentOf(byCursor))
	if a, err := fetch(t, t.Context(), s, &testPermits{limit: 2}); !errors.Is(err, errNoPermits) || a != nil || b.arrivals.Load() != 2 {
		t.Errorf("got %+v, error %v after %d arrivals", a, err, b.arrivals.Load())
	}
}

func TestPaging_EndlessPagesAreBadContent(t *testing.T) {
	link := func(to string) func(w http.ResponseWriter, r *http.Request, page int) bool {
		return func(w http.ResponseWriter, r *http.Request, page int) bool {
			w.Header().Set("Link", strings.ReplaceAll(to, "HOST", r.Host))
			_, _ = w.Write([]byte("[]"))
			return true
		}
	}
	page := func(text string) func(w http.ResponseWriter, r *http.Request, page int) bool {
		return func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			_, _ = w.Write([]byte(text))
			return true
		}
	}
	three := byCursor
	three.Paging = &Paging{Cursor: "next", Param: "after", Items: "of.list", MaxPages: 3}
	for i, c := range []struct {
		document Document
		respond  func(w http.ResponseWriter, r *http.Request, page int) bool
		calls    int64
		want     string
	}{
		{byCursor, nil, 10, "page 10: there are more than 10 pages; request fewer items or increase the document's paging.maxPages"},
		{three, nil, 3, "page 3: there are more than 3 pages"},
		{byLink, nil, 10, "page 10: there are more than 10 pages"},
		{byCursor, page(`{"of":{"list":[]},"next":"x"}`), 2, "page 2: the link or cursor to the next page repeats an earlier one"},
		{byCursor, page(`{"of":{"list":[]},"next":7}`), 2, "page 2: the link or cursor to the next page repeats"},
		{byCursor, page(`{"of":{"list":[]},"next":{"a":1}}`), 1, "page 1: next is not a cursor"},
		{byCursor, page(`{"of":{"list":[]},"next":"` + strings.Repeat("x", 9000) + `"}`), 1, "page 1: with the cursor the path is longer than 8 KiB"},
		{byQuery, page(`{"data":{"all":{"edges":[],"pageInfo":{"endCursor":"x"}}}}`), 2, "page 2: the link or cursor to the next page repeats"},
		{byLink, link(`<http://HOST/repos/a/issues?link=>; rel=next`), 1, "page 1: the link or cursor to the next page repeats"},
		{byLink, link(`<https://HOST/a>; rel=next`), 1, "page 1: the link to the next page points to another host"},
		{byLink, link(`<http://elsewhere.example/a>; rel=next`), 1, "page 1: the link to the next page points to another host"},
		{byLink, link(`<//elsewhere.example/a>; rel=next`), 1, "page 1: the link to the next page points to another host"},
		{byLink, link(`<>; rel=next`), 1, "page 1: the Link header has an empty target"},
		{byLink, link(`/a; rel=next`), 1, "page 1: the Link header is invalid"},
		{byLink, link(`</a>; rel="next`), 1, "page 1: the Link header is invalid"},
	} {
		b := &pagedUpstream{items: 100, respond: c.respond}
		s := testSource(t, serve(t, b.ServeHTTP), documentOf(c.document))
		a, err := fetch(t, t.Context(), s, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		if o := s.Read(a, time.Now()); o.Class != BadContent || !strings.Contains(o.Err.Error(), c.want) || b.arrivals.Load() != c.calls {
			t.Errorf("case %d: got %s after %d calls, error %v, want %s", i, o.Class, b.arrivals.Load(), o.Err, c.want)
		}
	}
}

func TestPaging_MaxBodyBoundsAllPages(t *testing.T) {
	for limit, want := range map[Bytes]Class{2000: OK, 400: BadContent} {
		b := &pagedUpstream{items: 20}
		s := testSource(t, serve(t, b.ServeHTTP), func(c *Config) { documentOf(byCursor)(c); c.MaxBody = limit })
		a, err := fetch(t, t.Context(), s, &testPermits{})
		if err != nil {
			t.Fatal(err)
		}
		if o := s.Read(a, time.Now()); o.Class != want || (want == BadContent && (!errors.Is(o.Err, ErrOversized) || a.Bytes() > int(limit))) {
			t.Errorf("limit %d: got %+v with %d bytes", limit, o, a.Bytes())
		}
	}
	// MaxBody also limits the sum of the decompressed pages, even if the compressed pages are
	// small.
	s := testSource(t, "http://upstream.example", func(c *Config) { documentOf(byLink)(c); c.MaxBody = 1000 })
	page := response{status: 200, header: compressed, body: gzipped(t, `["`+strings.Repeat("a", 600)+`"]`)}
	two := page
	two.more = []response{page}
	if o := read(t, s, page); o.Class != OK {
		t.Errorf("got outcome %+v", o)
	}
	if o := read(t, s, two); o.Class != BadContent || !errors.Is(o.Err, ErrOversized) {
		t.Errorf("got outcome %+v", o)
	}
}

func FuzzNextLink(f *testing.F) {
	for _, header := range []string{
		`<https://a/?page=2>; rel="next", <https://a/?page=9>; rel="last"`, `<a>;rel=next`, `<a>; rel="prev next"; title="x\"y"`, `<a,b>;rel=next,`, `<a`, `<a>;;;=`, `>,<`, `<a>;rel="`,
	} {
		f.Add(header)
	}
	f.Fuzz(func(t *testing.T, header string) {
		to, err := nextLink(header)
		if err != nil && to != "" {
			t.Errorf("%q: got target %q and error %v", header, to, err)
		}
		if to != "" && !strings.Contains(header, "<"+to+">") {
			t.Errorf("%q: got %q, which is not a target in the header", header, to)
		}
		if ok, err := nextLink(`<x>; rel="a", ` + header); err == nil && ok != to && !strings.HasPrefix(strings.Trim(header, " \t,"), "<") {
			t.Errorf("%q: got %q alone, %q after another link", header, to, ok)
		}
	})
}
