package postgres

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
)

var list = schemas.Entity{Source: "s", Facet: "f", Key: "list"}

// walkOf writes a walk of n items of about 1.5 KB, in pages of 100 items. `version` is the version of
// the first page.
func walkOf(t testing.TB, s *Store, version int64, n int) {
	t.Helper()
	walkWith(t, s, collection.DeletesNone, version, n)
}

// walkWith is like walkOf, with the rule of the deletions.
func walkWith(t testing.TB, s *Store, deletes string, version int64, n int) {
	t.Helper()
	all, rules := collection.New(s), collection.Rules{Order: collection.OrderNone, Deletes: deletes}
	for from := 0; from < n; from += 100 {
		state, err := all.State(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		page := collection.Page{Version: version, Began: time.UnixMilli(version)}
		for i := from; i < min(from+100, n); i++ {
			content := fmt.Appendf(nil, `{"body":"%s","id":%d}`, strings.Repeat(fmt.Sprintf("%x ", sha256.Sum256(fmt.Append(nil, i))), 22), i)
			page.Items = append(page.Items, collection.Fetched{ID: fmt.Sprint(i), Content: content, Hash: sha256.Sum256(content)})
		}
		if from+100 < n {
			page.Next = fmt.Sprint(from + 100)
		}
		state = state.Begin(rules, page.Began, false)
		after, err := state.After(rules, page)
		if err != nil {
			t.Fatal(err)
		}
		written, err := all.Write(t.Context(), []collection.Write{{Entity: list, Rules: rules, Before: state, After: after, Page: page}})
		if err != nil || written[0].Result != collection.Stored {
			t.Fatal(written, err)
		}
		version++
	}
}

// wal returns the current position in the server's write-ahead log, in bytes.
func wal(t testing.TB, s *Store) (bytes int64) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}

func TestCollection_UnchangedWalkWritesNoItem(t *testing.T) {
	for deletes, walkPages := range map[string]int64{collection.DeletesNone: 0, collection.DeletesFull: 20} {
		t.Run("deletes "+deletes, func(t *testing.T) {
			s := alone(t)
			began := wal(t, s)
			walkWith(t, s, deletes, 1, 2000)
			first := wal(t, s) - began
			_, _, inserted := counts(t, s, "items")
			_, _, pages := counts(t, s, "walk")
			walkWith(t, s, deletes, 100, 2000)
			second := wal(t, s) - began - first
			updated, _, inserts := counts(t, s, "items")
			if updated != 0 || inserts != inserted || inserted != 2000 {
				t.Errorf("rows of items: got %d inserted by the first walk, %d inserted and %d updated afterwards, want 2000, 0 and 0", inserted, inserts-inserted, updated)
			}
			if _, _, all := counts(t, s, "walk"); all-pages != walkPages {
				t.Errorf("rows of walk_pages that the second walk inserted: got %d, want %d", all-pages, walkPages)
			}
			// Other tests write to the same server, so the bytes are not judged.
			t.Logf("WAL of a walk of 20 pages: %d bytes, of an unchanged one: %d bytes (%.1f %%)", first, second, 100*float64(second)/float64(first))
		})
	}
}

// To store a page, a worker makes three round trips to the database: one to read the state of the
// collection, and two to write the page.
func TestCollection_PageTakesThreeRoundTrips(t *testing.T) {
	s, log := traced(t, open(t))
	walkOf(t, s, 1, 100)
	log.statements = nil
	walkOf(t, s, 100, 100)
	batches := 0
	for _, statement := range log.statements {
		if statement == "batch" {
			batches++
		}
	}
	if batches != 3 {
		t.Errorf("round trips of a page: got %d, want 3: %q", batches, log.statements)
	}
}

// BenchmarkCollectionItems compares two reads of a collection with 100,000 items: of a page of its
// items, and of its snapshot.
func BenchmarkCollectionItems(b *testing.B) {
	s := open(b)
	walkOf(b, s, 1, 100_000)
	all := collection.New(s)
	var last collection.Item
	b.Run("snapshot", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Get(b.Context(), list); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("page of 100", func(b *testing.B) {
		at := int64(0)
		for b.Loop() {
			at = (at + 37) % 1000
			items, err := all.Items(b.Context(), list, collection.Range{AfterVersion: at, Limit: 100})
			if err != nil || len(items) != 100 {
				b.Fatal(len(items), err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		n := 0
		for b.Loop() {
			span := collection.Range{Limit: 500}
			for {
				items, err := all.Items(b.Context(), list, span)
				if err != nil {
					b.Fatal(err)
				}
				if len(items) == 0 {
					break
				}
				n, last = n+len(items), items[len(items)-1]
				span.AfterVersion, span.AfterID = last.Version, last.ID
			}
		}
		b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "items/s")
	})
}

// A transaction that stores pages first locks the collections whose walk ends, and then all. WalkAgain must never hold the
// lock of one collection while it waits for another.
func TestCollection_WalkAgainHoldsOneLock(t *testing.T) {
	s := open(t)
	all, rules := collection.New(s), collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesNone}
	first, second := schemas.Entity{Source: "s", Facet: "f", Key: "a"}, schemas.Entity{Source: "s", Facet: "f", Key: "b"}
	for _, e := range []schemas.Entity{first, second} {
		page := collection.Page{Version: 1, Began: time.UnixMilli(1), Next: "2"}
		before := collection.State{}.Begin(rules, page.Began, false)
		after, err := before.After(rules, page)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := all.Write(t.Context(), []collection.Write{{Entity: e, Rules: rules, Before: before, After: after, Page: page}}); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pages.Rollback(t.Context()) }()
	store := func(e schemas.Entity) {
		t.Helper()
		if _, err := pages.Exec(t.Context(), "UPDATE collections SET version = version WHERE key = $1", e.Key); err != nil {
			t.Fatalf("page of %s: got %v, want no error", e, err)
		}
	}
	store(second)
	result := make(chan error)
	go func() { result <- all.WalkAgain(t.Context(), []schemas.Entity{first, second}) }()
	waitForLock(t, s)
	store(first)
	if err := pages.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("WalkAgain: got %v, want no error", err)
	}
}
