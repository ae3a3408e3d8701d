package storetest

import (
	"errors"
	"fmt"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/store"
)

// testPagesBatch writes pages of many collections in one transaction. Among them are a page that is
// refused, a page that was stored already, two pages of the same collection, and two pages of runs. The
// step of one of the two runs has ended.
func testPagesBatch(b suite) {
	w := b.walker()
	var ids []string
	for n := range 30 {
		ids = append(ids, fmt.Sprint(n))
	}
	w.rules.Deletes, w.rules.ShrinkGuard = collection.DeletesFull, 0.5
	w.page("", fetchedAll("x", ids...)...)
	pageOf := func(e string, version int64, next string, items ...collection.Fetched) collection.Write {
		target := entity
		target.Key = e
		before, err := w.all.State(b.Context(), target)
		if err != nil {
			b.Fatal(err)
		}
		p := collection.Write{Entity: target, Rules: w.rules, Before: before.Begin(w.rules, at(version), false), Page: collection.Page{Version: version, Began: at(version), Items: items, Next: next}}
		if p.After, err = p.Before.After(w.rules, p.Page); err != nil {
			b.Fatal(err)
		}
		return p
	}
	pages := []collection.Write{pageOf(entity.Key, 2, "", fetched("0", "y")), pageOf("z", 3, "2", fetchedAll("x", ids...)...), pageOf("z", 4, "2", fetched("z", "x"))}
	for n := range 20 {
		pages = append(pages, pageOf(fmt.Sprint("list-", n), int64(10+n), "", fetchedAll("x", ids[:n]...)...))
	}
	moved := pageOf("list-3", 50, "")
	moved.Entity.Key, moved.Before.Version = "other", 1
	pages = append(pages, moved)
	for n, key := range []string{entity.Key, "unknown"} { // the statement of the first step writes a row, and that of the second step writes none
		p := pageOf(fmt.Sprint("step-", n), int64(60+n), "2", fetched("a", "x"))
		p.Step = &store.Statement{Text: `UPDATE collections SET page = page WHERE source = $1 AND facet = $2 AND key = $3`, Args: []any{entity.Source, entity.Facet, key}}
		pages = append(pages, p)
	}
	results, err := w.all.Write(b.Context(), pages)
	if err != nil {
		b.Fatal(err)
	}
	if r := results[0]; !errors.Is(r.Refused, collection.ErrShrunk) || r.Result != 0 {
		b.Errorf("page of a list that has shrunk: got %+v, want it refused", r)
	}
	if results[1].Result != collection.Moved || results[2].Result != collection.Stored || results[2].Changed != 1 {
		b.Errorf("two pages of one collection: got %+v and %+v, want the later one stored", results[1], results[2])
	}
	for n, r := range results[3:23] {
		if r.Result != collection.Stored || r.State.Items != int64(n) || r.Changed != int64(n) {
			b.Errorf("list %d: got %+v, want %d stored items", n, r, n)
		}
	}
	if results[23].Result != collection.Moved {
		b.Errorf("page with another state: got %+v, want it moved", results[23])
	}
	if s := w.state(); s.Version != 1 || s.Items != 30 {
		b.Errorf("state of the refused collection: got version %d and %d items, want 1 and 30", s.Version, s.Items)
	}
	if open, ended := results[24], results[25]; open.Result != collection.Stored || open.State.Walk.Page != 2 || ended.Result != collection.Moved {
		b.Errorf("pages of an open and of an ended step: got %+v and %+v, want the first one stored", open, ended)
	}
	for _, key := range []string{"other", "step-1"} {
		gone := entity
		gone.Key = key
		if _, err := b.store.Get(b.Context(), gone); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("snapshot of the moved page of %s: got %v, want %v", key, err, store.ErrNotFound)
		}
	}
	if events := w.claim(100); len(events) != 1 || events[0].Entity.Key != "z" || events[0].Triggers[0].Page != "4-2" {
		b.Errorf("events: got %+v, want the request of page 2 of z", events)
	}
}

func testListAndTotals(b suite) {
	w := b.walker()
	w.page("", fetchedAll("x", "b", "ab", "a")...)
	w.page("2", fetchedAll("y", "ab")...)
	list := func(l collection.Listing) (ids string) {
		b.Helper()
		items, err := w.reads.List(b.Context(), entity, l)
		if err != nil {
			b.Fatal(err)
		}
		for _, i := range items {
			ids += fmt.Sprintf(" %s@%d:%d", i.ID, i.Version, i.Size)
		}
		return ids
	}
	for name, c := range map[string]struct {
		l    collection.Listing
		want string
	}{
		"newest":         {collection.Listing{Limit: 2}, " ab@2:22 b@1:21"},
		"the next page":  {collection.Listing{AfterVersion: 1, AfterID: "b", Limit: 2}, " a@1:21"},
		"prefix":         {collection.Listing{Prefix: "a", Limit: 9}, " a@1:21 ab@2:22"},
		"prefix, page 2": {collection.Listing{Prefix: "a", AfterID: "a", Limit: 9}, " ab@2:22"},
		"no such prefix": {collection.Listing{Prefix: "c", Limit: 9}, ""},
	} {
		if got := list(c.l); got != c.want {
			b.Errorf("%s: got%s, want%s", name, got, c.want)
		}
	}
	totals, err := w.reads.Totals(b.Context(), entity.Source, 10)
	want := collection.Totals{Facet: entity.Facet, Collections: 1, Items: 3, Walks: 1, OldestWalk: at(2)}
	if err != nil || len(totals) != 1 || totals[0] != want {
		b.Errorf("totals: got %+v, %v, want %+v", totals, err, want)
	}
}
