package storetest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/store"
)

// runCollections runs the tests of package collection.
func runCollections(t *testing.T, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(b suite)
	}{
		{"collection: walk of three pages", testWalk},
		{"collection: unchanged page writes no item", testUnchangedPage},
		{"collection: page is stored once", testPageOnce},
		{"collection: concurrent writes of a page", testPageRace},
		{"collection: not-found result stored later", testPageAfterNotFound},
		{"collection: item events", testItemEvents},
		{"collection: quiet trigger", testCollectionQuiet},
		{"collection: deleted by flag", testDeletedByFlag},
		{"collection: missing items of one page", testMissingOnePage},
		{"collection: missing items of several pages", testMissingPages},
		{"collection: shrink guard", testItemsShrunk},
		{"collection: another visibility", testItemsVisibility},
		{"collection: keep and maximum", testItemsExpire},
		{"collection: ranges of items", testItemRange},
		{"collection: Abandon", testAbandon},
		{"collection: pages of several collections", testPagesBatch},
		{"collection: List and Totals", testListAndTotals},
		{"collection: Scan", testScan},
		{"collection: InKeyOrder", testInKeyOrder},
		{"collection: WalkAgain", testWalkAgain},
		{"collection: Delete and DeleteExpired", testCollectionDeleted},
		{"collection: ids of every kind", testItemIDs},
		{"collection: random walks match the model", testCollectionModel},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(suite{t, open(t)}) })
	}
}

// WorkerStore is implemented by a store that connects with a separate database role for each kind of process.
type WorkerStore interface {
	// WorkerTx returns the transactions of a worker.
	WorkerTx() collection.Store
}

// walker writes pages of one collection as a worker does, and reads items as a query service does.
type walker struct {
	suite
	all     *collection.Collections
	reads   *collection.Collections
	rules   collection.Rules
	outbox  store.OutboxEvents
	version int64
	written collection.Written // result of the page that was written last
}

func (b suite) walker() *walker {
	writes := collection.Store(b.store)
	if roles, ok := b.store.(WorkerStore); ok {
		writes = roles.WorkerTx()
	}
	return &walker{suite: b, all: collection.New(writes), reads: collection.New(b.store), rules: collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesNone, ExtractVersion: 7}}
}

// fetched returns a fetched item with this id. Its content contains the text.
func fetched(id, text string) collection.Fetched {
	content, _ := json.Marshal(map[string]string{"id": id, "text": text})
	return collection.Fetched{ID: id, Hash: sha256.Sum256(content), Content: content}
}

func fetchedAll(text string, ids ...string) (items []collection.Fetched) {
	for _, id := range ids {
		items = append(items, fetched(id, text))
	}
	return items
}

func (w *walker) state() collection.State {
	w.Helper()
	s, err := w.all.State(w.Context(), entity)
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// tryPage writes the next page of the collection. `before` is the state that was read before, and can
// be outdated.
func (w *walker) tryPage(before collection.State, next string, items ...collection.Fetched) (collection.Result, error) {
	w.version++
	before = before.Begin(w.rules, at(w.version), false)
	page := collection.Page{Version: w.version, Began: at(w.version), Items: items, Next: next}
	after, err := before.After(w.rules, page)
	if err != nil {
		return 0, err
	}
	written, err := w.all.Write(w.Context(), []collection.Write{{
		Entity: entity, Rules: w.rules, Before: before, After: after, Page: page, Outbox: w.outbox, Params: map[string]string{"a": "b"},
	}})
	if err != nil {
		return 0, err
	}
	w.written = written[0]
	return written[0].Result, written[0].Refused
}

// page writes the next page of the collection. It fails the test unless the page is stored.
func (w *walker) page(next string, items ...collection.Fetched) {
	w.Helper()
	if got, err := w.tryPage(w.state(), next, items...); got != collection.Stored || err != nil {
		w.Fatalf("page %d: got result %d, %v, want %d", w.version, got, err, collection.Stored)
	}
}

// wantItems checks the stored items. An item is written as id:text@version, and a deleted item as
// id!@version.
func (w *walker) wantItems(want string) {
	w.Helper()
	var got []string
	present := int64(0)
	items, err := w.reads.Items(w.Context(), entity, collection.Range{WithDeleted: true, Limit: 1000})
	if err != nil {
		w.Fatal(err)
	}
	for _, i := range items {
		if i.Deleted {
			got = append(got, fmt.Sprintf("%s!@%d", i.ID, i.Version))
			continue
		}
		present++
		var c struct{ Text string }
		if err := json.Unmarshal(i.Content, &c); err != nil || i.Hash != sha256.Sum256(i.Content) {
			w.Errorf("item %s: content %q, %v", i.ID, i.Content, err)
		}
		got = append(got, fmt.Sprintf("%s:%s@%d", i.ID, c.Text, i.Version))
	}
	if text := strings.Join(got, " "); text != want {
		w.Errorf("items: got %s, want %s", text, want)
	}
	if s := w.state(); s.Items != present {
		w.Errorf("State.Items: got %d, want %d", s.Items, present)
	}
}

func (w *walker) wantSummary(want string) store.Snapshot {
	w.Helper()
	s := w.get(entity)
	content, err := s.Decode(nil)
	if err != nil || string(content) != want {
		w.Errorf("snapshot: got %s, %v, want %s", content, err, want)
	}
	return s
}

func testWalk(b suite) {
	w := b.walker()
	w.write(one(store.NotFoundStored), notFound(entity, 0))
	w.page("/list?page=2", fetchedAll("x", "a", "b")...)
	w.wantSummary(`{"asOf":null,"changedAt":"2027-01-15T08:00:01.000123Z","complete":false,"count":2}`)
	if s := w.state(); s.Walk.ID != 1 || s.Walk.Page != 2 || s.Walk.Position != "/list?page=2" || !s.Walk.Full {
		b.Errorf("walk after page 1: got %+v", s.Walk)
	}
	events := w.claim(10)
	if len(events) != 1 || len(events[0].Triggers) != 1 || events[0].Triggers[0].Page != "1-2" || events[0].Triggers[0].Params["a"] != "b" || events[0].PublishChange {
		b.Errorf("events after page 1: got %+v", events)
	}
	w.page("/list?page=3", fetchedAll("x", "c")...)
	w.page("", fetchedAll("x", "d", "a")...)
	s := w.wantSummary(`{"asOf":"2027-01-15T08:00:01.000123Z","changedAt":"2027-01-15T08:00:03.000123Z","complete":true,"count":4}`)
	if s.Version != 3 || !s.CheckedAt.Equal(at(1)) || !s.UpdatedAt.Equal(at(3)) || s.ExtractVersion != 7 || s.NotFound {
		b.Errorf("state of the snapshot: got %+v", s.State)
	}
	w.wantItems("a:x@1 b:x@1 c:x@2 d:x@3")
	if s := w.state(); s.Walk != (collection.Walk{}) || !s.CompleteAt.Equal(at(1)) || !s.FullAt.Equal(at(1)) {
		b.Errorf("state after the walk: got %+v", s)
	}
}

// claim returns the outbox events that are due, and deletes them.
func (w *walker) claim(limit int) []store.OutboxEvent {
	w.Helper()
	events, err := w.store.ClaimOutboxEvents(w.Context(), entity.Source, at(100_000), time.Minute, limit)
	if err != nil {
		w.Fatal(err)
	}
	var ids []int64
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	if err := w.store.DeleteOutboxEvents(w.Context(), ids); err != nil {
		w.Fatal(err)
	}
	return events
}

func testUnchangedPage(b suite) {
	w := b.walker()
	w.outbox.PublishChange = true
	w.page("", fetchedAll("x", "a", "b")...)
	w.claim(10)
	before := b.get(entity)
	w.page("", fetchedAll("x", "a", "b")...)
	w.wantItems("a:x@1 b:x@1")
	if events := w.claim(10); len(events) != 0 {
		b.Errorf("events of an unchanged page: got %+v", events)
	}
	if s := w.get(entity); s.Hash != before.Hash || s.Version != 2 || !s.UpdatedAt.Equal(before.UpdatedAt) || !s.CheckedAt.Equal(at(2)) {
		b.Errorf("snapshot of an unchanged page: got %+v", s.State)
	}
}

func testPageOnce(b suite) {
	w := b.walker()
	none := w.state()
	w.page("2", fetchedAll("x", "a")...)
	first := w.state()
	for name, before := range map[string]collection.State{"page 1 of a worker that was slower": none} {
		if got, err := w.tryPage(before, "", fetchedAll("y", "a", "z")...); got != collection.Moved || err != nil {
			b.Errorf("%s: got %d, %v, want %d", name, got, err, collection.Moved)
		}
	}
	w.page("", fetchedAll("x", "b")...)
	if got, err := w.tryPage(first, "", fetchedAll("y", "b")...); got != collection.Moved || err != nil {
		b.Errorf("page 2 again: got %d, %v, want %d", got, err, collection.Moved)
	}
	w.wantItems("a:x@1 b:x@3")
	if err := b.store.Delete(b.Context(), entity); err != nil {
		b.Fatal(err)
	}
	if got, err := w.tryPage(first, "", fetchedAll("y", "b")...); got != collection.Moved || err != nil {
		b.Errorf("page 2 of a deleted collection: got %d, %v, want %d", got, err, collection.Moved)
	}
	if _, err := b.store.Get(b.Context(), entity); !errors.Is(err, store.ErrNotFound) {
		b.Errorf("snapshot after a write that was refused: got %v, want %v", err, store.ErrNotFound)
	}
}

func testPageRace(b suite) {
	w := b.walker()
	for round := range 20 {
		before, began := w.state(), w.version
		var group sync.WaitGroup
		results := make([]collection.Result, 4)
		for n := range results {
			group.Go(func() {
				own := *w
				own.version = began + int64(n)
				var err error
				for results[n], err = own.tryPage(before, "", fetched("a", fmt.Sprint(round, n))); errors.Is(err, store.ErrContention); {
					own.version--
					results[n], err = own.tryPage(before, "", fetched("a", fmt.Sprint(round, n)))
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		group.Wait()
		stored := 0
		for _, r := range results {
			if r == collection.Stored {
				stored++
			}
		}
		if stored != 1 {
			b.Fatalf("round %d: %d of %d concurrent writes were stored, want 1 (%v)", round, stored, len(results), results)
		}
		w.version += int64(len(results))
	}
}

func testPageAfterNotFound(b suite) {
	w := b.walker()
	w.page("2", fetchedAll("x", "a")...)
	b.write(one(store.NotFoundStored), notFound(entity, 9))
	if got, err := w.tryPage(w.state(), "", fetchedAll("y", "a")...); got != collection.Moved || err != nil {
		b.Errorf("page of a fetch before the not-found result: got %d, %v, want %d", got, err, collection.Moved)
	}
	w.version = 9
	w.page("", fetchedAll("y", "a")...)
	if s := b.get(entity); s.NotFound {
		b.Error("the collection is not found after a page")
	}
}

func testItemEvents(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFull
	w.outbox = store.OutboxEvents{PublishChange: true, Triggers: []store.Trigger{{Facet: "other"}}}
	text := func() string {
		var all []string
		for _, e := range w.claim(100) {
			all = append(all, fmt.Sprintf("%s %t %t %d", e.Item, e.Before != store.Hash{}, e.After != store.Hash{}, len(e.Triggers)))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	w.page("", fetchedAll("x", "a", "b")...)
	if got, want := text(), " false true 1, a false true 0, b false true 0"; got != want {
		b.Errorf("events of new items: got %s, want %s", got, want)
	}
	w.page("", fetchedAll("y", "a")...)
	if got, want := text(), " true true 1, a true true 0, b true false 0"; got != want {
		b.Errorf("events of a changed and a deleted item: got %s, want %s", got, want)
	}
	w.rules.ExtractVersion++
	w.page("", fetchedAll("z", "a")...)
	if got := text(); got != "" {
		b.Errorf("events after a change of the facet's settings: got %s, want none", got)
	}
	w.wantItems("b!@2 a:z@3")
}

func testCollectionQuiet(b suite) {
	w := b.walker()
	w.outbox.Triggers = []store.Trigger{{Facet: "other", Quiet: time.Minute, MaxDelay: time.Hour}}
	w.page("", fetched("a", "1"))
	first := b.get(entity).Hash
	w.page("", fetched("a", "2"))
	w.page("", fetched("a", "3"))
	events := w.claim(10)
	if len(events) != 1 || events[0].Version != 3 || events[0].Before != (store.Hash{}) || events[0].After == first {
		b.Errorf("events: got %+v, want one event from no content to the last content", events)
	}
}

func testAbandon(b suite) {
	w := b.walker()
	w.page("2", fetchedAll("x", "a")...)
	for _, walk := range []int64{2, 1} {
		if err := w.all.Abandon(b.Context(), entity, walk); err != nil {
			b.Fatal(err)
		}
		if got, want := w.state().Walk.Open(), walk != 1; got != want {
			b.Errorf("walk 1 is open after Abandon of walk %d: got %t, want %t", walk, got, want)
		}
	}
	if events := w.claim(10); len(events) != 0 {
		b.Errorf("requests of pages after Abandon: got %+v, want none", events)
	}
	w.page("", fetchedAll("x", "b")...)
	w.wantItems("a:x@1 b:x@2")
}

func testCollectionDeleted(b suite) {
	w := b.walker()
	w.rules.Deletes = collection.DeletesFull
	remove := map[string]func() error{
		"Delete": func() error { return b.store.Delete(b.Context(), entity) },
		"DeleteSnapshot": func() error {
			_, err := b.store.DeleteSnapshot(b.Context(), entity, deletion(entity, 1))
			return err
		},
		"DeleteExpired": func() error { b.expire(100_000, 5); return nil },
	}
	for name, remove := range remove {
		w.page("2", fetchedAll("x", "a")...)
		if err := remove(); err != nil {
			b.Fatal(name, err)
		}
		if s := w.state(); s != (collection.State{}) {
			b.Errorf("%s: got state %+v, want none", name, s)
		}
		w.wantItems("")
	}
}
