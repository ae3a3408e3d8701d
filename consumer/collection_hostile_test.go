package consumer_test

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

// A request of a hostile list must become a dead letter whose error names the fault. No stored item may
// be lost.
func TestCollection_HostileLists(t *testing.T) {
	respond := func(body, link string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			if link != "" {
				w.Header().Set("Link", "<"+link+`>; rel="next"`)
			}
			w.Header().Set("Content-Type", cmp.Or(map[bool]string{true: "text/html"}[strings.HasPrefix(body, "<")], "application/json"))
			_, _ = w.Write([]byte(body))
		}
	}
	for name, c := range map[string]struct {
		page   int // number of the call with the hostile answer
		answer func(http.ResponseWriter)
		want   string // text that the error of the dead letter must contain
	}{
		"link to another host":    {1, respond(`[]`, "https://evil.example/x"), "points to another host"},
		"link to itself":          {1, respond(`[]`, "/lists/k?per_page=3"), "repeats an earlier one"},
		"page 2 leads to page 2":  {2, respond(`[]`, "/lists/k?page=2&per_page=3"), "repeats an earlier one"},
		"link of 9 KiB":           {1, respond(`[]`, "/x?"+strings.Repeat("a", 9<<10)), "longer than 8 KiB"},
		"item without id":         {1, respond(`[{"id":"a"},{"text":"b"}]`, ""), "item 2 of the page: has no id"},
		"id that is an object":    {1, respond(`[{"id":{}}]`, ""), "has no id"},
		"empty id":                {1, respond(`[{"id":""}]`, ""), "empty id"},
		"id of 10 KB":             {1, respond(`[{"id":"`+strings.Repeat("x", 10_000)+`"}]`, ""), "10000 bytes"},
		"id with a NUL":           {1, respond(`[{"id":"a\u0000b"}]`, ""), "control characters"},
		"cursor that is no time":  {1, respond(`[{"id":"a","updated_at":"yesterday"}]`, ""), "neither a time"},
		"cursor of 10,000 digits": {1, respond(`[{"id":"a","updated_at":`+strings.Repeat("9", 10_000)+`}]`, ""), "10000 digits"},
		"HTML in place of page 2": {2, respond(`<html>maintenance</html>`, ""), "not valid JSON"},
		"an object":               {1, respond(`{"message":"no"}`, ""), "not a list"},
		"a list of texts":         {1, respond(`["a"]`, ""), "not an object"},
		"an endless list":         {0, nil, "more than 6 pages"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newListRig(t, items.Collection{ID: "id", Cursor: &items.Cursor{Field: "updated_at", Param: "since"}}, func(f *source.Facet) {
				d := f.Documents["list"]
				d.Paging = &source.Paging{Link: true, MaxPages: 6}
				f.Documents = map[string]source.Document{"list": d}
			})
			r.list.answer = func(w http.ResponseWriter, req *http.Request, n int) bool {
				if c.answer == nil { // without an answer of its own, each page has a link to one more page
					respond(fmt.Sprintf(`[{"id":"e%d"}]`, n), fmt.Sprintf("/lists/k?page=%d", n+1))(w)
					return true
				}
				page := cmp.Or(req.URL.Query().Get("page"), "1")
				if page != strconv.Itoa(c.page) {
					return false
				}
				c.answer(w)
				return true
			}
			r.start()
			r.refresh()
			r.until("a failure", func() bool { return len(r.deadLetters()) > 0 || r.status("k").State != "" })
			text := r.status("k").Error
			if d := r.deadLetters(); len(d) > 0 {
				text = d[0].Error
			}
			if !strings.Contains(text, c.want) {
				t.Errorf("failure: got %q, want a text with %q", text, c.want)
			}
			stored := r.state().Items
			if want := int64((c.page - 1) * 3); c.page > 0 && stored != want {
				t.Errorf("stored items: got %d, want the %d of the pages before", stored, want)
			}
		})
	}
}

func TestCollection_DuplicatesInPages(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	r.list.items = append(r.list.items, r.list.items[0], r.list.items[7])
	r.start()
	r.walk()
	if s := r.state(); s.Items != 8 {
		t.Errorf("items: got %d, want 8", s.Items)
	}
}

func TestCollection_NotFoundMidway(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"}, func(f *source.Facet) { f.NotFoundFor = time.Millisecond })
	gone := true
	r.list.answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
		if gone && req.URL.Query().Get("page") == "2" {
			http.NotFound(w, req)
			return true
		}
		return false
	}
	r.start()
	r.refresh()
	r.until("the not-found result", func() bool { s, _ := r.snapshot("k"); return s.NotFound })
	r.list.set(func(*listUpstream) { gone = false })
	r.list.take()
	r.wantCalls("the walk after the not-found result", r.walk(), "1", "2", "3")
	r.wantList()
}

// Items without the field of the cursor are stored, and do not change the cursor. If no item has the
// field, each walk is full.
func TestCollection_CursorFieldIsMissing(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id", Cursor: &items.Cursor{Field: "created", Param: "since"}})
	r.start()
	r.wantCalls("the first walk", r.walk(), "1", "2", "3")
	if got := r.state().Cursor; got != "" {
		t.Errorf("cursor: got %q, want none", got)
	}
	r.wantCalls("the second walk", r.walk(), "1", "2", "3")
	r.wantList()
}

// A walk of a list ends at maxPages, even if maxPages has its highest possible value (100,000).
func TestCollection_HundredThousandPages(t *testing.T) {
	for name, more := range map[string]bool{"100,000 pages": false, "100,001 pages": true} {
		t.Run(name, func(t *testing.T) {
			r := newListRig(t, items.Collection{ID: "id"}, func(f *source.Facet) {
				f.Documents = map[string]source.Document{"list": {Path: "/lists/{key}?per_page=3", Paging: &source.Paging{Link: true, MaxPages: 100_000}}}
			})
			r.list.answer = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				if more {
					w.Header().Set("Link", `</lists/k?page=100001>; rel="next"`)
				}
				_, _ = w.Write([]byte(`[{"id":"last"}]`))
				return true
			}
			r.openWalk(100_000, "/lists/k?page=100000")
			r.start()
			if more {
				r.until("a failure", func() bool { return r.status("k").State != "" })
				if got := r.status("k").Error; !strings.Contains(got, "more than 100000 pages") {
					t.Errorf("failure: got %q, want more than 100000 pages", got)
				}
				return
			}
			r.until("the end of the walk", func() bool { return !r.state().CompleteAt.IsZero() })
			r.wantCalls("the walk", r.list.take(), "100000")
		})
	}
}
