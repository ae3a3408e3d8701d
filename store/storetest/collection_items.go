package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/source/items"
)

func testDeletedByFlag(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFlag
	w.page("", fetchedAll("x", "a", "b")...)
	gone := fetched("a", "y")
	gone.Deleted = true
	w.page("", gone, collection.Fetched{ID: "unknown", Deleted: true})
	w.wantItems("b:x@1 a!@2")
	w.page("", gone)
	w.wantItems("b:x@1 a!@2")
	w.page("", fetched("a", "x"))
	w.wantItems("b:x@1 a:x@4")
}

func testMissingOnePage(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFull
	w.page("", fetchedAll("x", "a", "b")...)
	w.page("", fetchedAll("x", "b")...)
	w.wantItems("b:x@1 a!@2")
	w.page("")
	w.wantItems("a!@2 b!@3")
	w.version = int64(collection.KeepDeleted/time.Second) + 2
	w.page("")
	w.wantItems("b!@3")
}

func testMissingPages(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFull
	walk := func(first, second string) {
		w.page("2", fetchedAll("x", strings.Fields(first)...)...)
		w.page("", fetchedAll("x", strings.Fields(second)...)...)
	}
	walk("a b", "c d")
	walk("a c", "d") // b was not found once: it was deleted, or it moved to another page during the walk
	w.wantItems("a:x@1 b:x@1 c:x@2 d:x@2")
	walk("a b", "d") // b is found again, and c is not found for the first time
	w.wantItems("a:x@1 b:x@1 c:x@2 d:x@2")
	walk("a b", "d")
	w.wantItems("a:x@1 b:x@1 d:x@2 c!@8")
	w.page("", fetchedAll("x", "a")...) // no list of one page hides an item
	w.wantItems("a:x@1 c!@8 b!@9 d!@9")
}

func testItemsShrunk(b suite) {
	w := b.walker()
	w.rules.Deletes, w.rules.ShrinkGuard = collection.DeletesFull, 0.5
	var ids []string
	for n := range 30 {
		ids = append(ids, fmt.Sprintf("%02d", n))
	}
	w.page("", fetchedAll("x", ids...)...)
	before := w.state()
	if _, err := w.tryPage(before, "", fetchedAll("y", ids[:14]...)...); !errors.Is(err, collection.ErrShrunk) {
		b.Errorf("14 of 30 items are left: got %v, want %v", err, collection.ErrShrunk)
	}
	if got := w.state(); got != before {
		b.Errorf("state after a refused write: got %+v, want %+v", got, before)
	}
	w.page("", fetchedAll("x", ids[:15]...)...)
	if s := w.state(); s.Items != 15 {
		b.Errorf("items: got %d, want 15", s.Items)
	}
	w.page("", fetchedAll("x", ids[:5]...)...) // ten deletions are always allowed, so that a short list may become empty
	if s := w.state(); s.Items != 5 {
		b.Errorf("items: got %d, want 5", s.Items)
	}
}

func testItemsExpire(b suite) {
	w := b.walker()
	w.rules.HasCursor, w.rules.Keep, w.rules.MaxItems, w.outbox.PublishChange = true, 90*time.Minute, 3, true
	start := at(0).UnixMilli()
	write := func(hours int, ids ...string) {
		w.version = start + int64(hours)*time.Hour.Milliseconds()
		items := fetchedAll("x", ids...)
		for n := range items {
			items[n].Cursor = time.UnixMilli(w.version).UTC().Format(time.RFC3339Nano)
		}
		w.pageAt(time.UnixMilli(w.version), items...)
	}
	ids := func() (ids string) {
		items, err := w.reads.Items(b.Context(), entity, collection.Range{WithDeleted: true, Limit: 10})
		if err != nil {
			b.Fatal(err)
		}
		for _, i := range items {
			ids += i.ID
		}
		return ids
	}
	write(0, "a", "b", "c", "d")
	if got, want := ids(), "bcd"; got != want || w.state().Items != 3 {
		b.Errorf("at most 3 items: got %s and the count %d, want %s", got, w.state().Items, want)
	}
	write(1, "e")
	if got, want := ids(), "cde"; got != want {
		b.Errorf("at most 3 items: got %s, want %s", got, want)
	}
	w.claim(100)
	write(2) // c and d have not changed for two hours
	if got, want := ids(), "e"; got != want || w.state().Items != 1 {
		b.Errorf("items of the last 90 minutes: got %s and the count %d, want %s", got, w.state().Items, want)
	}
	for _, e := range w.claim(100) {
		if e.Item != "" {
			b.Errorf("event of an item that expired: got %+v, want none", e)
		}
	}
	old := fetched("old", "x")
	old.Cursor = at(0).Format(time.RFC3339Nano)
	w.pageAt(time.UnixMilli(w.version+1), old)
	if got, want := ids(), "e"; got != want {
		b.Errorf("items after a page with an expired item: got %s, want %s", got, want)
	}
}

// pageAt writes a walk with one page. The fetch of the page began at the time `began`.
func (w *walker) pageAt(began time.Time, items ...collection.Fetched) {
	w.Helper()
	w.version++
	before := w.state().Begin(w.rules, began, false)
	page := collection.Page{Version: w.version, Began: began, Items: items}
	after, err := before.After(w.rules, page)
	if err != nil {
		w.Fatal(err)
	}
	written, err := w.all.Write(w.Context(), []collection.Write{{Entity: entity, Rules: w.rules, Before: before, After: after, Page: page, Outbox: w.outbox}})
	if err != nil || written[0].Result != collection.Stored {
		w.Fatalf("page: got %+v, %v, want %d", written, err, collection.Stored)
	}
}

func testItemsVisibility(b suite) {
	w := b.walker()
	w.rules.Visibility = "secret"
	w.page("2", fetchedAll("x", "a", "b")...)
	w.rules.Visibility = ""
	w.page("2", fetchedAll("x", "b")...)
	w.wantItems("b:x@2")
	if s := b.get(entity); s.Visibility != "" {
		b.Errorf("visibility: got %q, want none", s.Visibility)
	}
	if s := w.state(); s.Walk.ID != 2 || s.Walk.Page != 2 {
		b.Errorf("walk after another visibility: got %+v, want page 2 of a new walk", s.Walk)
	}
}

func testItemRange(b suite) {
	w := b.walker()
	w.page("", fetchedAll("x", "d", "b", "a")...)
	w.page("", fetchedAll("x", "c", "a")...)
	w.page("", fetched("b", "y"))
	read := func(r collection.Range) (ids string) {
		b.Helper()
		items, err := w.reads.Items(b.Context(), entity, r)
		if err != nil {
			b.Fatal(err)
		}
		for _, i := range items {
			ids += i.ID
		}
		return ids
	}
	for name, c := range map[string]struct {
		r    collection.Range
		want string
	}{
		"all":            {collection.Range{Limit: 10}, "adcb"},
		"first two":      {collection.Range{Limit: 2}, "ad"},
		"after an item":  {collection.Range{AfterVersion: 1, AfterID: "a", Limit: 2}, "dc"},
		"changed since":  {collection.Range{ChangedSince: at(2), Limit: 10}, "cb"},
		"after the last": {collection.Range{AfterVersion: 3, AfterID: "b", Limit: 10}, ""},
	} {
		if got := read(c.r); got != c.want {
			b.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	if got, want := read(collection.Range{ID: "b", Limit: 1}), "b"; got != want {
		b.Errorf("one item: got %s, want %s", got, want)
	}
	if got := read(collection.Range{ID: "z", Limit: 1}); got != "" {
		b.Errorf("unknown item: got %s, want none", got)
	}
}

func testItemIDs(b suite) {
	w := b.walker()
	ids := []string{"1", "01", "A", "a", "ä", "a\u0308", "'; DROP TABLE items", "a/b", "%", "_", strings.Repeat("x", items.MaxIDBytes), "日本"}
	w.page("", fetchedAll("x", ids...)...)
	for _, id := range ids {
		if i, err := w.reads.Items(b.Context(), entity, collection.Range{ID: id}); err != nil || len(i) != 1 || i[0].ID != id {
			b.Errorf("item %q: got %v, %v", id, i, err)
		}
	}
	twice := append(fetchedAll("y", "A"), fetched("A", "z"))
	w.page("", twice...)
	if i, err := w.reads.Items(b.Context(), entity, collection.Range{ID: "A"}); err != nil || len(i) != 1 || !strings.Contains(string(i[0].Content), "z") {
		b.Errorf("item that a page has twice: got %+v, %v, want the later item", i, err)
	}
	var many []collection.Fetched
	for n := range 1200 {
		many = append(many, fetched(fmt.Sprint("n", n), "x"))
	}
	w.page("", many...)
	if s := w.state(); s.Items != int64(len(ids)+len(many)) {
		b.Errorf("items: got %d, want %d", s.Items, len(ids)+len(many))
	}
}
