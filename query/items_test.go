package query

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// itemRig is a query service for tests. It has a database in memory, and its facet is a collection.
type itemRig struct {
	*rig
	collections *collection.Collections
	version     int64
}

func newItemRig(t testing.TB, changes ...func(*rig)) *itemRig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &itemRig{collections: collection.New(db)}
	r.rig = newRig(t, func(on *rig) {
		on.store = countingStore{storeWithItems{db, r.collections}, on}
		on.settings = func(f *source.Facet) { f.Collection, f.KeyPattern = &items.Collection{ID: "id"}, ".+" }
		for _, change := range changes {
			change(on)
		}
	})
	return r
}

// page stores a walk of the collection k that has only one page. A text id=content is an item, and a
// text id! is a deleted item.
func (r *itemRig) page(texts ...string) {
	r.Helper()
	r.version++
	rules := collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesFlag}
	before, err := r.collections.State(r.Context(), entity("k"))
	if err != nil {
		r.Fatal(err)
	}
	before = before.Begin(rules, time.Now(), false)
	page := collection.Page{Version: r.version, Began: time.Now().Truncate(time.Microsecond)}
	for _, text := range texts {
		id, content, _ := strings.Cut(text, "=")
		id, deleted := strings.CutSuffix(id, "!")
		body := []byte(fmt.Sprintf(`{"text":%q}`, content))
		page.Items = append(page.Items, collection.Fetched{ID: id, Content: body, Hash: sha256.Sum256(body), Deleted: deleted})
	}
	after, err := before.After(rules, page)
	if err != nil {
		r.Fatal(err)
	}
	written, err := r.collections.Write(r.Context(), []collection.Write{{Entity: entity("k"), Rules: rules, Before: before, After: after, Page: page}})
	if err != nil || written[0].Result != collection.Stored {
		r.Fatal(written, err)
	}
	r.settle("k", r.version)
}

type itemsAnswer struct {
	Items []itemAnswer
	Next  string
	More  bool
}

type itemAnswer struct {
	ID      string
	Version int64
	Deleted bool
	Item    struct{ Text string }
}

func idsOf(all []itemAnswer) string {
	var ids []string
	for _, i := range all {
		text := i.ID + "=" + i.Item.Text
		if i.Deleted {
			text = i.ID + "!"
		}
		ids = append(ids, text)
	}
	return strings.Join(ids, " ")
}

// list requests items with this query string. It decodes the body if the status is 200.
func (r *itemRig) list(query string, headers ...string) (itemsAnswer, answer) {
	r.Helper()
	a := r.do(http.MethodGet, "/v1/nexon/character/k/items"+query, headers...)
	var body itemsAnswer
	if a.StatusCode == http.StatusOK {
		if err := json.Unmarshal([]byte(a.text), &body); err != nil {
			r.Fatalf("%s: %v in %s", query, err, a.text)
		}
	}
	return body, a
}

func TestItems_PagesInOrderOfChanges(t *testing.T) {
	r := newItemRig(t)
	r.page("c=1", "a=1", "b=1")
	r.page("d=1", "a=2")
	var got string
	pages := 0
	for target := "?limit=2"; target != ""; pages++ {
		body, a := r.list(target)
		got += idsOf(body.Items) + " | "
		link := a.Header.Get("Link")
		if (link != "") != body.More {
			t.Fatalf("Link %q with more %t", link, body.More)
		}
		target = ""
		if link != "" {
			u, err := url.Parse(strings.TrimSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`))
			if err != nil || u.Path != "/v1/nexon/character/k/items" {
				t.Fatalf("Link: got %s, %v", link, err)
			}
			target = "?" + u.RawQuery
		}
	}
	if want := "b=1 c=1 | a=2 d=1 | "; got != want || pages != 2 {
		t.Errorf("items: got %s, want %s", got, want)
	}
}

// A cache must store separate responses for each origin and for each media type.
func TestItems_VaryByOriginAndAccept(t *testing.T) {
	r := newItemRig(t, func(on *rig) { on.config.Origins = []string{"https://site.example"} })
	r.page("a=1")
	_, a := r.list("?limit=10", "Origin", "https://site.example")
	vary := strings.Split(strings.Join(a.Header.Values("Vary"), ", "), ", ")
	if a.Header.Get("Access-Control-Allow-Origin") != "https://site.example" || !slices.Contains(vary, "Origin") || !slices.Contains(vary, "Accept") {
		t.Errorf("Vary: got %q in %v, want Origin and Accept", vary, a.Header)
	}
}

func TestItems_ChangesWithDeletedOnes(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1", "b=1")
	first, _ := r.list("")
	since := time.Now().UTC()
	if none, _ := r.list("?after=" + first.Next); len(none.Items) != 0 || none.Next != first.Next || none.More {
		t.Errorf("after the last item: got %+v, want no item and the same next", none)
	}
	if got, want := idsOf(first.Items), "a=1 b=1"; got != want {
		t.Errorf("items: got %s, want %s", got, want)
	}
	r.page("a!", "c=1")
	for query, want := range map[string]string{
		"":            "b=1 c=1",
		"?after=1.Yg": "a! c=1", // the position after item b of version 1
		"?changedSince=" + since.Format(time.RFC3339Nano): "a! c=1",
	} {
		if body, _ := r.list(query); idsOf(body.Items) != want {
			t.Errorf("%s: got %s, want %s", query, idsOf(body.Items), want)
		}
	}
}

func TestItems_ETagChangesWithItems(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1")
	_, first := r.list("?limit=5")
	etag := first.Header.Get("Etag")
	if _, a := r.list("?limit=5", "If-None-Match", etag); a.StatusCode != http.StatusNotModified || a.text != "" {
		t.Errorf("the same query: got status %d %s, want 304", a.StatusCode, a.text)
	}
	if _, a := r.list("?limit=6", "If-None-Match", etag); a.StatusCode != http.StatusOK {
		t.Errorf("another query: got status %d, want 200", a.StatusCode)
	}
	r.page("a=1")
	if _, a := r.list("?limit=5", "If-None-Match", etag); a.StatusCode != http.StatusNotModified {
		t.Errorf("after a check without changes: got status %d, want 304", a.StatusCode)
	}
	r.page("a=2")
	if _, a := r.list("?limit=5", "If-None-Match", etag); a.StatusCode != http.StatusOK {
		t.Errorf("after a change: got status %d, want 200", a.StatusCode)
	}
}

func TestItems_One(t *testing.T) {
	r := newItemRig(t)
	r.page("a/b=1", "z=1")
	a := r.do(http.MethodGet, "/v1/nexon/character/k/items/a%2Fb")
	if a.StatusCode != http.StatusOK || !strings.Contains(a.text, `"id":"a/b"`) || !strings.Contains(a.text, `"item":{"text":"1"}`) {
		t.Errorf("item: got %d %s", a.StatusCode, a.text)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character/k/items/a%2Fb", "If-None-Match", a.Header.Get("Etag")); a.StatusCode != http.StatusNotModified {
		t.Errorf("the same item: got status %d, want 304", a.StatusCode)
	}
	if a := r.do(http.MethodGet, "/v1/nexon/character/k/items/unknown"); a.StatusCode != http.StatusNotFound {
		t.Errorf("unknown item: got status %d, want 404", a.StatusCode)
	}
}

func TestItems_StreamHasAllItems(t *testing.T) {
	r := newItemRig(t)
	var texts []string
	for n := range 2*streamedItems + 3 {
		texts = append(texts, fmt.Sprintf("i%05d=x", n))
	}
	r.page(texts...)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/k/items", nil)
	req.Header.Set("Accept", "application/x-ndjson")
	rec := httptest.NewRecorder()
	r.server.ServeHTTP(rec, req)
	lines := strings.Split(strings.TrimSuffix(rec.Body.String(), "\n"), "\n")
	if kind := rec.Header().Get("Content-Type"); kind != ndjson || len(lines) != len(texts) {
		t.Fatalf("got %s with %d lines, want %d", kind, len(lines), len(texts))
	}
	for n, line := range lines {
		var i itemAnswer
		if err := json.Unmarshal([]byte(line), &i); err != nil || i.ID+"="+i.Item.Text != texts[n] {
			t.Fatalf("line %d: got %s, %v, want %s", n, line, err, texts[n])
		}
	}
}

// If a stream ends before its last item, the client must notice it.
func TestItems_StreamOfFailingStoreIsCutOff(t *testing.T) {
	r := newItemRig(t)
	var texts []string
	for n := range 2 * streamedItems {
		texts = append(texts, fmt.Sprintf("i%05d=x", n))
	}
	r.page(texts...)
	working := r.server.cache.store
	r.server.cache.store = &failingItems{Store: working, after: 1}
	server := httptest.NewServer(r.server)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/nexon/character/k/items", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/x-ndjson")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	d := json.NewDecoder(resp.Body)
	n := 0
	for ; err == nil; n++ {
		var i itemAnswer
		err = d.Decode(&i)
	}
	if err.Error() != "unexpected EOF" {
		t.Errorf("after %d items: got %v, want an unexpected EOF", n-1, err)
	}
}

// failingItems is a store that returns an error after some reads of items.
type failingItems struct {
	Store
	after int
}

func (f *failingItems) Items(ctx context.Context, e schemas.Entity, r collection.Range) ([]collection.Item, error) {
	if f.after--; f.after < 0 {
		return nil, errors.New("injected by the test")
	}
	return f.Store.Items(ctx, e, r)
}

func TestItems_RejectsQueries(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1")
	for query, code := range map[string]problem.Code{
		"?limit=0": problem.BadLimit, "?limit=1001": problem.BadLimit, "?limit=x": problem.BadLimit,
		"?after=x": problem.BadCursor, "?after=1.%2B": problem.BadCursor, "?after=99999999999999999999.YQ": problem.BadCursor,
		"?changedSince=yesterday": problem.BadFilter, "?a=%zz": problem.BadFilter,
	} {
		if _, a := r.list(query); a.StatusCode != http.StatusBadRequest || a.body.Code != string(code) {
			t.Errorf("%s: got status %d and code %s, want 400 and %s", query, a.StatusCode, a.body.Code, code)
		}
	}
	if a := r.do(http.MethodGet, "/v1/nexon/shared/k%2Fitems"); a.StatusCode == http.StatusOK {
		t.Errorf("another facet: got status %d", a.StatusCode)
	}
}

func TestItems_UnknownCollectionIsRequested(t *testing.T) {
	r := newItemRig(t)
	r.respond = func(context.Context, UpdateRequest) EnqueueResult { return EnqueueResult{Queued: true, Number: 1} }
	if _, a := r.list(""); a.StatusCode != http.StatusAccepted {
		t.Errorf("got status %d %s, want 202", a.StatusCode, a.text)
	}
	if n := len(r.enqueued()); n != 1 {
		t.Errorf("update requests: got %d, want 1", n)
	}
}

// In a facet that is no collection, a key can end with /items.
func TestItems_OnlyOfCollections(t *testing.T) {
	r := newRig(t)
	r.do(http.MethodGet, "/v1/nexon/character/a/items/b")
	if got := r.enqueued(); len(got) != 1 || got[0].Entity.Key != "a/items/b" {
		t.Errorf("requests: got %+v, want one for the key a/items/b", got)
	}
}

func TestItems_NotVisibleToOthers(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1")
	r.limits = func(string) string { return "secret" }
	r.server.catalog.sources["nexon"] = limitedSource{r.src, r.limits}
	r.client.Scopes = r.client.Scopes[:1]
	for _, path := range []string{"/items", "/items/a"} {
		if a := r.do(http.MethodGet, "/v1/nexon/character/k"+path); a.StatusCode != http.StatusNotFound || strings.Contains(a.text, "text") {
			t.Errorf("%s: got status %d %s, want 404", path, a.StatusCode, a.text)
		}
	}
}

func TestItems_EventNamesChangedItems(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1", "b=1")
	st := &stream{s: r.server, entity: entity("k"), facet: mustFacet(t, r)}
	send := func() string {
		rec := httptest.NewRecorder()
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/nexon/character/k/events", nil)
		st.c = r.server.echo.NewContext(req, rec)
		v, err := r.server.reader.readAndEnqueue(st.c, everything, st.entity, st.facet, acceptDeadline(0))
		if err != nil || !st.send(v) {
			t.Fatalf("event: got %v", err)
		}
		return rec.Body.String()
	}
	if text := send(); strings.Contains(text, `"items"`) {
		t.Errorf("first event: got %s, want no items", text)
	}
	r.page("a=2", "b!", "c=1")
	if text, want := send(), `"items":[{"id":"a"},{"id":"b","deleted":true},{"id":"c"}]`; !strings.Contains(text, want) {
		t.Errorf("event: got %s, want %s", text, want)
	}
	var many []string
	for n := range maxChangedItems + 1 {
		many = append(many, fmt.Sprintf("m%d=1", n))
	}
	r.page(many...)
	if text := send(); strings.Count(text, `{"id"`) != maxChangedItems || !strings.Contains(text, `"moreItems":true`) {
		t.Errorf("event of many items: got %d ids in %s", strings.Count(text, `{"id"`), text)
	}
}

func mustFacet(t *testing.T, r *itemRig) source.Facet {
	t.Helper()
	f, known := r.src.Facet("character")
	if !known {
		t.Fatal("the facet is missing")
	}
	return f
}

// Responses with items must have the same headers as responses with snapshots: a cache subtracts Age
// from max-age, and Freshet-Degraded says why the items may be outdated.
func TestItems_HeadersAreThoseOfSnapshots(t *testing.T) {
	r := newItemRig(t)
	r.page("a=1")
	for _, c := range []struct {
		blocked, want RefreshReason
		stale         bool
	}{{"", "", false}, {"", "", true}, {ReasonUpstreamDown, ReasonUpstreamDown, true}} {
		r.blocked = c.blocked
		if c.stale {
			r.server.cache.lookups.store = staleStore{r.server.cache.lookups.store}
			r.settle("k", r.version)
		}
		for _, path := range []string{"k", "k/items", "k/items/a"} {
			a := r.do(http.MethodGet, "/v1/nexon/character/"+path)
			if got := a.Header.Get("Freshet-Degraded"); a.StatusCode != http.StatusOK || got != string(c.want) || a.Header.Get("Age") == "" {
				t.Errorf("%s, stale %v, blocked by %q: got %d, degraded %q, Age %q, want 200, %q and an age", path, c.stale, c.blocked, a.StatusCode, got, a.Header.Get("Age"), c.want)
			}
		}
	}
}

// staleStore is a store that returns each snapshot as if it was checked one day earlier.
type staleStore struct{ Store }

func (s staleStore) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	found, err := s.Store.Get(ctx, e)
	found.CheckedAt = found.CheckedAt.Add(-24 * time.Hour)
	return found, err
}

// A response with items counts as one request, and as one more request for each 64 KiB of items.
func TestItems_CountForTheLimitOfRequests(t *testing.T) {
	r := newItemRig(t)
	large := strings.Repeat("x", unpackedPerRequest)
	r.page("a="+large, "b="+large, "c="+large)
	for path, want := range map[string]string{"k/items": "3", "k/items?limit=1": "2", "k/items/a": "1"} { // with limit=1 two items are read: the second one shows that there is a next page
		r.mu.Lock()
		r.limiterCalls = nil
		r.mu.Unlock()
		a := r.do(http.MethodGet, "/v1/nexon/character/"+path)
		r.mu.Lock()
		calls := r.limiterCalls
		r.mu.Unlock()
		if last := calls[len(calls)-1]; a.StatusCode != http.StatusOK || !strings.HasPrefix(last, "requests ") || !strings.HasSuffix(last, " "+want) {
			t.Errorf("%s: got status %d and the calls %q, want %s more requests", path, a.StatusCode, calls, want)
		}
	}
}
