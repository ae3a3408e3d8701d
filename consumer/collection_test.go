package consumer_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/producer"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

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
	r.wantCalls("the second walk", r.walk(), "1") // the response to page 1 is 304
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

// A page must be fetched only once, even if the record of its request was published twice.
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

// A process stops after page 2 of three. Another process must continue the walk, because its outbox relay
// requests the next page.
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
	r.stopRelay() // before the response to page 2, so that no worker of the first process gets a request of page 3
	close(proceed)
	r.until("page 2", func() bool { return r.state().Walk.Page == 3 })
	stop()
	if s := r.state(); !s.Walk.Open() || s.Walk.Page != 3 {
		t.Fatalf("walk after the stop: got %+v, want page 3 to be next", s.Walk)
	}
	r.run(r.relay.Run)
	r.start()
	r.until("the end of the walk", func() bool { s := r.state(); return !s.CompleteAt.IsZero() })
	r.wantCalls("the walk", r.list.take(), "1", "2", "3")
	r.wantList()
}

// The record of a request can be lost after Kafka has acknowledged it. Then the outbox must request the
// page again.
func TestCollection_LostRecordOfPageIsRequestedAgain(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"})
	r.lost.Store(1)
	r.start()
	r.refresh()
	r.until("the request of page 2", func() bool {
		next, err := r.db.NextOutboxTime(t.Context(), "nexon")
		return err == nil && next.After(time.Now().Add(5*time.Minute))
	})
	r.wantCalls("the walk before the record was lost", r.list.take(), "1")
	// Let ten minutes pass, after which the outbox requests a page again: a claim whose time is in an
	// hour and whose lease has ended before that makes the event due.
	if _, err := r.db.ClaimOutboxEvents(t.Context(), "nexon", time.Now().Add(time.Hour), -time.Hour, 10); err != nil {
		t.Fatal(err)
	}
	r.relay.Notify()
	r.until("the end of the walk", func() bool { return !r.state().CompleteAt.IsZero() })
	r.wantCalls("the walk afterwards", r.list.take(), "2", "3")
	r.wantList()
	if next, err := r.db.NextOutboxTime(t.Context(), "nexon"); err != nil || !next.IsZero() {
		t.Errorf("next outbox event after the walk: got %v, %v, want none", next, err)
	}
}

// If the upstream answers 404 during a walk, the outbox must no longer request the next page of this
// walk.
func TestCollection_NotFoundEndsRequestsOfPage(t *testing.T) {
	r := newListRig(t, items.Collection{ID: "id"}, func(f *source.Facet) { f.NotFoundFor = time.Millisecond })
	r.list.answer = func(w http.ResponseWriter, req *http.Request, _ int) bool {
		if req.URL.Query().Get("page") == "2" {
			http.NotFound(w, req)
			return true
		}
		return false
	}
	r.start()
	r.refresh()
	r.until("the result 404", func() bool { s, _ := r.snapshot("k"); return s.NotFound })
	r.list.take()
	r.until("the end of the requests", func() bool {
		if _, err := r.db.ClaimOutboxEvents(t.Context(), "nexon", time.Now().Add(time.Hour), -time.Hour, 10); err != nil {
			t.Fatal(err)
		}
		r.relay.Notify()
		next, err := r.db.NextOutboxTime(t.Context(), "nexon")
		return err == nil && next.IsZero()
	})
	r.wantCalls("requests of a walk that was abandoned", r.list.take())
}
