package storetest

import (
	"slices"
	"strings"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// testScan: scans in chunks of any size must find each item once, and no deleted item.
func testScan(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFlag
	w.page("", fetchedAll("x", "a", "é", "b", "10", "9", "gone")...)
	gone := fetched("gone", "x")
	gone.Deleted = true
	w.page("", gone, fetched("b", "y"))
	for chunk := 1; chunk <= 6; chunk++ {
		var order []string
		var after collection.Position
		for n := chunk; n == chunk; {
			n = 0
			err := w.all.Scan(b.Context(), entity, after, chunk, func(at collection.Position, content []byte) {
				n, after = n+1, at
				if order = append(order, at.ID); !strings.Contains(string(content), `"id":"`+at.ID+`"`) {
					b.Errorf("content of %s: got %s", at.ID, content)
				}
			})
			if err != nil {
				b.Fatal(err)
			}
		}
		if want := []string{"10", "9", "a", "é", "b"}; !slices.Equal(order, want) {
			b.Errorf("scan in chunks of %d: got %q, want %q", chunk, order, want)
		}
	}
}

// testInKeyOrder: collections are listed in the order of their keys, by prefix and in chunks.
func testInKeyOrder(b suite) {
	w := b.walker()
	for _, k := range []string{"ab/2", "a/1", "a/2", "a", "b/1", "a-b/1", "aé/1"} {
		page := collection.Page{Version: 1, Began: at(1)}
		before := collection.State{}.Begin(w.rules, at(1), false)
		after, err := before.After(w.rules, page)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.all.Write(b.Context(), []collection.Write{{Entity: key(k), Rules: w.rules, Before: before, After: after, Page: page}}); err != nil {
			b.Fatal(err)
		}
	}
	for prefix, want := range map[string]string{"a": "a a-b/1 a/1 a/2 ab/2 aé/1", "a/": "a/1 a/2", "": "a a-b/1 a/1 a/2 ab/2 aé/1 b/1", "c": ""} {
		var got []string
		for after, more := "", true; more; {
			some, err := w.all.InKeyOrder(b.Context(), store.KeyRange{Source: entity.Source, Facet: entity.Facet, KeyPrefix: prefix}, after, 2)
			if err != nil {
				b.Fatal(err)
			}
			for _, s := range some {
				after = s.Key
				if got = append(got, s.Key); !s.Complete || s.Visibility != "" {
					b.Errorf("collection %s: got %+v, want it complete", s.Key, s)
				}
			}
			more = len(some) == 2
		}
		if text := strings.Join(got, " "); text != want {
			b.Errorf("collections with prefix %q: got %s, want %s", prefix, text, want)
		}
	}
}

// testWalkAgain: when a walk ends, another walk is requested if WalkAgain was called during the walk.
func testWalkAgain(b suite) {
	w := b.walker()
	again := func() {
		b.Helper()
		if err := w.reads.WalkAgain(b.Context(), []schemas.Entity{key("unknown"), entity}); err != nil {
			b.Fatal(err)
		}
	}
	want := func(what string, pages ...string) {
		b.Helper()
		var got []string
		for _, e := range w.claim(100) {
			for _, t := range e.Triggers {
				got = append(got, t.Page)
				if t.Facet != entity.Facet || t.Params["a"] != "b" {
					b.Errorf("%s: got the trigger %+v, want one of %s with its params", what, t, entity.Facet)
				}
			}
		}
		if !slices.Equal(got, pages) {
			b.Errorf("%s: got requests of the pages %q, want %q", what, got, pages)
		}
	}
	again() // no walk is open, so this call has no effect
	w.page("2", fetchedAll("x", "a")...)
	want("page 1", "1-2")
	w.page("", fetchedAll("x", "b")...)
	want("the last page of a walk")
	w.page("2", fetchedAll("y", "a")...)
	again()
	again()
	want("page 1", "3-2")
	w.page("3", fetchedAll("y", "b")...)
	want("page 2", "3-3")
	w.page("", fetchedAll("x", "c")...)
	want("the last page of a walk with a change", "")
	w.page("2", fetchedAll("x", "a")...)
	w.page("", fetchedAll("x", "b")...)
	want("the walk after it")
	w.page("2", fetchedAll("x", "a")...)
	again()
	if err := w.all.Abandon(b.Context(), entity, w.state().Walk.ID); err != nil {
		b.Fatal(err)
	}
	w.page("2", fetchedAll("x", "a")...)
	w.page("", fetchedAll("x", "a")...)
	want("the walk after an abandoned one")
}
