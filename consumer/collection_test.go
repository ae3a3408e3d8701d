package consumer_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/outbox"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
)

// listUpstream has one list of items, and serves it in pages with a Link header.
type listUpstream struct {
	mu      sync.Mutex
	items   []listItem
	perPage int
	etags   bool
	calls   []string // page and since of each call
	// answer replaces the response to a call, unless it returns false. n counts the calls from 1.
	answer func(w http.ResponseWriter, r *http.Request, n int) bool
}

type listItem struct {
	ID        string    `json:"id"`
	UpdatedAt time.Time `json:"updated_at"`
	Text      string    `json:"text"`
	Gone      bool      `json:"gone,omitempty"`
}

func (u *listUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()
	q := r.URL.Query()
	page := 1
	if n, err := strconv.Atoi(q.Get("page")); err == nil {
		page = n
	}
	u.calls = append(u.calls, strings.TrimSpace(fmt.Sprint(page, " ", q.Get("since"))))
	if u.answer != nil && u.answer(w, r, len(u.calls)) {
		return
	}
	var listed []listItem
	since, _ := time.Parse(time.RFC3339, q.Get("since"))
	for _, i := range u.items {
		if !i.UpdatedAt.Before(since) {
			listed = append(listed, i)
		}
	}
	from, to := min((page-1)*u.perPage, len(listed)), min(page*u.perPage, len(listed))
	body, _ := json.Marshal(append([]listItem{}, listed[from:to]...))
	w.Header().Set("Content-Type", "application/json")
	if tag := fmt.Sprintf(`"%x"`, sha256.Sum256(body)); u.etags && page == 1 {
		w.Header().Set("Etag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if to < len(listed) {
		next := *r.URL
		q.Set("page", strconv.Itoa(page+1))
		next.RawQuery = q.Encode()
		w.Header().Set("Link", `<`+next.RequestURI()+`>; rel="next"`)
	}
	_, _ = w.Write(body)
}

func (u *listUpstream) take() (calls []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	calls, u.calls = u.calls, nil
	return calls
}

func (u *listUpstream) set(change func(*listUpstream)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(u)
}

// listRig has workers of both lanes and an outbox relay, for a facet that is a collection.
type listRig struct {
	*rig
	list        *listUpstream
	collections *collection.Collections
	relay       *outbox.Relay
	runs        consumer.Runs // nil: there are no runs
}

// epoch is the time of the first item, well before every walk.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func listOf(n int) (items []listItem) {
	for i := range n {
		items = append(items, listItem{ID: fmt.Sprintf("i%02d", i), UpdatedAt: epoch.Add(time.Duration(i) * time.Hour), Text: "x"})
	}
	return items
}

func newListRig(t *testing.T, c items.Collection, changes ...func(*source.Facet)) *listRig {
	t.Helper()
	r := &listRig{rig: newRig(t), list: &listUpstream{perPage: 3, items: listOf(8)}}
	server := httptest.NewServer(r.list)
	t.Cleanup(server.Close)
	r.config.BaseURL = server.URL
	r.config.Rules = nil
	r.facet(func(f *source.Facet) {
		f.Documents = map[string]source.Document{"list": {Path: "/lists/{key}?per_page=3", Paging: &source.Paging{Link: true}}}
		f.Params, f.Ignore, f.Collection = nil, nil, &c
		f.Retry = []time.Duration{time.Millisecond}
		for _, change := range changes {
			change(f)
		}
	})
	r.collections = collection.New(r.db)
	poller := poll.New(outbox.Channel("nexon"), r.rdb, r.log(), outbox.ClaimsFail)
	r.relay = outbox.New("nexon", r.db, nextPages{r.producer}, r.client(), poller, r.log(), prometheus.NewRegistry())
	r.run(r.relay.Run)
	return r
}

// nextPages enqueues the requests of the outbox as package app does.
type nextPages struct{ *producer.Producer }

func (p nextPages) Trigger(ctx context.Context, claimed []store.ClaimedRequest) (left []store.ClaimedRequest) {
	for _, c := range claimed {
		r := p.EnqueueAndWait(ctx, producer.Request{Entity: c.Entity, Lane: schemas.Low, Reason: schemas.NextPage, Floor: c.Version, Page: c.Page, Params: c.Params})
		if !r.Queued() && r.Outcome != producer.Held {
			left = append(left, c)
		}
	}
	return left
}

func (r *listRig) start() (stop func()) {
	r.Helper()
	var stops []func()
	for _, lane := range []schemas.Lane{schemas.High, schemas.Low} {
		deps := r.deps()
		deps.Outbox, deps.Walks, deps.Items, deps.Runs = r.relay, r.collections, r.collections, r.runs
		config := consumer.DefaultConfig(lane)
		config.DrainTimeout = waitTimeout
		w, err := consumer.New(config, r.source, lane, deps)
		if err != nil {
			r.Fatal(err)
		}
		stops = append(stops, r.run(w.Run))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

func (r *listRig) state() collection.State {
	r.Helper()
	s, err := r.collections.State(r.Context(), entity("k"))
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// walk requests the collection and waits until its walk is complete. It returns the calls.
func (r *listRig) walk() []string {
	r.Helper()
	before := r.state()
	r.refresh()
	r.until("the end of the walk", func() bool {
		s := r.state()
		return s.CompleteAt.After(before.CompleteAt) && !s.Walk.Open()
	})
	return r.list.take()
}

func (r *listRig) refresh() {
	r.Helper()
	req := requestFor("k")
	req.Reason = schemas.UserRequest
	if result := r.producer.Enqueue(r.Context(), req); !result.Queued() {
		r.Fatalf("request: got %+v, want it queued", result)
	}
}

func (r *listRig) wantCalls(what string, got []string, want ...string) {
	r.Helper()
	if !slices.Equal(got, want) {
		r.Errorf("calls of %s: got %q, want %q", what, got, want)
	}
}

// wantList checks that the stored items equal the upstream's.
func (r *listRig) wantList() {
	r.Helper()
	items, err := r.collections.Items(r.Context(), entity("k"), collection.Range{Limit: 1000})
	if err != nil {
		r.Fatal(err)
	}
	var got, want []string
	for _, i := range items {
		var l listItem
		if err := json.Unmarshal(i.Content, &l); err != nil {
			r.Error(err)
		}
		got = append(got, l.ID+"="+l.Text)
	}
	r.list.set(func(u *listUpstream) {
		for _, i := range u.items {
			if !i.Gone {
				want = append(want, i.ID+"="+i.Text)
			}
		}
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Errorf("stored items: got %q, want %q", got, want)
	}
	s := r.state()
	var summary collection.Summary
	snapshot, _ := r.snapshot("k")
	content, err := snapshot.Decode(nil)
	if err == nil {
		err = json.Unmarshal(content, &summary)
	}
	if err != nil || summary.Count != int64(len(want)) || s.Items != summary.Count {
		r.Errorf("summary: got %s, %v, want the count %d", content, err, len(want))
	}
}

func TestCollection_EachPageIsOneRequest(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	r.start()
	r.wantCalls("the first walk", r.walk(), "1", "2", "3")
	r.wantList()
	if high, low := r.produced(schemas.High), r.produced(schemas.Low); high != 1 || low != 2 {
		t.Errorf("records: got %d HIGH and %d LOW, want page 1 in HIGH and two pages in LOW", high, low)
	}
	r.list.set(func(u *listUpstream) { u.items[4].Text = "y"; u.items = append(u.items, listOf(9)[8]) })
	first, _ := r.snapshot("k")
	r.wantCalls("the second walk", r.walk(), "1", "2", "3")
	r.wantList()
	if second, _ := r.snapshot("k"); second.Hash == first.Hash {
		t.Error("the snapshot has the same hash after an item has changed")
	}
}

func TestCollection_CursorRequestsNewItemsOnly(t *testing.T) {
	for _, order := range []string{"none", "asc"} {
		t.Run(order, func(t *testing.T) {
			r := newListRig(t, items.Collection{ID: "id", Order: order, Cursor: &items.Cursor{Field: "updated_at", Param: "since", Lookback: time.Hour}})
			r.start()
			r.wantCalls("the first walk", r.walk(), "1", "2", "3")
			if got, want := r.state().Cursor, "2026-01-01T07:00:00Z"; got != want {
				t.Errorf("cursor: got %s, want %s", got, want)
			}
			version := r.state().Changed
			r.wantCalls("the second walk", r.walk(), "1 2026-01-01T06:00:00Z")
			if got := r.state().Changed; got != version {
				t.Errorf("version of the last changed item: got %d, want %d, because nothing has changed", got, version)
			}
			r.list.set(func(u *listUpstream) {
				u.items[0].Text, u.items[0].UpdatedAt = "y", epoch.Add(9*time.Hour)
				slices.SortFunc(u.items, func(a, b listItem) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
			})
			r.wantCalls("the third walk", r.walk(), "1 2026-01-01T06:00:00Z")
			r.wantList()
		})
	}
}

func TestCollection_CursorOfFutureIsBounded(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id", Cursor: &items.Cursor{Field: "updated_at", Param: "since"}})
	r.list.items[3].UpdatedAt = time.Now().Add(48 * time.Hour)
	r.start()
	r.walk()
	at, err := time.Parse(time.RFC3339Nano, r.state().Cursor)
	if err != nil || at.After(time.Now()) {
		t.Errorf("cursor: got %v, %v, want no time after the start of the walk", at, err)
	}
}

func TestCollection_NewestFirstEndsAtTheCursor(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id", Order: "desc", Cursor: &items.Cursor{Field: "updated_at"}}, func(f *source.Facet) { f.Conditional = true })
	slices.Reverse(r.list.items)
	r.list.etags = true
	r.start()
	r.wantCalls("the first walk", r.walk(), "1", "2", "3")
	r.wantCalls("the second walk", r.walk(), "1") // 304
	newest := listItem{ID: "new", UpdatedAt: epoch.Add(10 * time.Hour), Text: "x"}
	r.list.set(func(u *listUpstream) { u.items = append([]listItem{newest}, u.items...) })
	r.wantCalls("the third walk", r.walk(), "1")
	r.wantList()
	r.list.set(func(u *listUpstream) {
		for n := range 3 {
			newest.ID, newest.UpdatedAt = fmt.Sprint("new", n), newest.UpdatedAt.Add(time.Hour)
			u.items = append([]listItem{newest}, u.items...)
		}
	})
	r.wantCalls("a walk with a whole page of new items", r.walk(), "1", "2")
	r.wantList()
}

func TestCollection_DeletesItems(t *testing.T) {
	full := func(f *source.Facet) { f.ShrinkGuard = 0.5 }
	t.Run("full", func(t *testing.T) {
		r := newListRig(t, items.Collection{ID: "id", Deletes: "full"}, full)
		r.start()
		r.walk()
		r.list.set(func(u *listUpstream) { u.items = slices.Delete(u.items, 2, 4) })
		r.walk()
		if s := r.state(); s.Items != 8 {
			t.Errorf("items after one walk that has not found two: got %d, want 8", s.Items)
		}
		r.walk()
		r.wantList()
	})
	t.Run("flag", func(t *testing.T) {
		r := newListRig(t, items.Collection{ID: "id", Deletes: "flag", DeletedFlag: "gone"})
		r.start()
		r.walk()
		r.list.set(func(u *listUpstream) { u.items[2].Gone = true })
		r.walk()
		r.wantList()
	})
	t.Run("shrink guard", func(t *testing.T) {
		r := newListRig(t, items.Collection{ID: "id", Deletes: "full"}, full)
		r.list.items, r.list.perPage = listOf(30), 100
		r.start()
		r.walk()
		r.list.set(func(u *listUpstream) { u.items = u.items[:3] })
		r.refresh()
		r.until("a dead letter", func() bool { return len(r.deadLetters()) == 1 })
		if d := r.deadLetters()[0]; d.Reason != schemas.ParseError || !strings.Contains(d.Error, "27 of 30 items") {
			t.Errorf("dead letter: got %s %s", d.Reason, d.Error)
		}
		if s := r.state(); s.Items != 30 {
			t.Errorf("items: got %d, want 30", s.Items)
		}
	})
}

// A record that was published twice must not fetch a page twice.
func TestCollection_RepeatedRecordOfPageIsSkipped(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	r.start()
	r.walk()
	for _, page := range []string{r.state().Walk.Name(), "5-2"} {
		req := producer.Request{Entity: entity("k"), Lane: schemas.Low, Reason: schemas.NextPage, Page: page}
		before := r.produced(schemas.Low)
		if result := r.producer.EnqueueAndWait(t.Context(), req); !result.Queued() {
			t.Fatalf("request: got %+v, want it queued", result)
		}
		r.until("the record", func() bool { return r.produced(schemas.Low) > before })
		r.untilCommitted(schemas.Low)
	}
	r.wantCalls("pages that are not the next one", r.list.take())
}

// A worker that stops between two pages loses nothing: the outbox requests the next page.
func TestCollection_WalkContinuesAfterRestart(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	arrived, proceed := make(chan struct{}), make(chan struct{})
	r.list.set(func(u *listUpstream) {
		u.answer = func(_ http.ResponseWriter, _ *http.Request, n int) bool {
			if n == 2 {
				close(arrived)
				<-proceed
			}
			return false
		}
	})
	stop := r.start()
	r.refresh()
	<-arrived
	done := make(chan struct{})
	go func() { stop(); close(done) }()
	close(proceed)
	<-done
	if s := r.state(); !s.Walk.Open() || s.Walk.Page != 3 {
		t.Fatalf("walk after the stop: got %+v, want page 3 to be next", s.Walk)
	}
	r.start()
	r.until("the end of the walk", func() bool { s := r.state(); return !s.CompleteAt.IsZero() })
	r.wantCalls("the walk", r.list.take(), "1", "2", "3")
	r.wantList()
}

// Hostile lists end as a dead letter that says why, and lose no stored item.
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
		want   string // text of the dead letter
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
				if c.answer == nil { // each page has a link to one more
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
