package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
)

// fillCollection gives the rig a collection with an open walk and 51 items. The second item is deleted.
func fillCollection(r *rig) {
	r.entity.Collection = true
	r.collection = collection.State{
		Version: 9, Items: 1_250, ChangedAt: testNow.Add(-time.Minute), Cursor: "2027-01-15T07:00:00Z",
		CompleteAt: testNow.Add(-2 * time.Hour), FullAt: testNow.Add(-48 * time.Hour),
		Walk: collection.Walk{ID: 8, Page: 13, Began: testNow.Add(-3 * time.Minute)},
	}
	for n := range 51 {
		r.items = append(r.items, collection.Item{ID: fmt.Sprint(n), Version: int64(100 - n), ChangedAt: testNow.Add(-time.Duration(n) * time.Minute), Size: 1_480, Deleted: n == 1})
	}
	totals := collection.Totals{Facet: "issues", Collections: 1_200, Items: 98_000, Incomplete: 3, Walks: 2, OldestWalk: testNow.Add(-90 * time.Minute)}
	s := r.sched["nexon"]
	s.MaxCollections = 100_000
	s.Collections = status.Reading[[]collection.Totals]{Value: []collection.Totals{totals}}
	r.sched["nexon"] = s
}

func TestCollection_ShowsWalksAndNewestItems(t *testing.T) {
	r := newRig(t)
	fillCollection(r)
	const path = root + "/collection?facet=nexon/character&key=a"
	d := r.get(path)
	for id, want := range map[string]string{
		"walk": "page 13 is next; the walk began 3 min ago; it requests the items since the cursor", "cursor": "2027-01-15T07:00:00Z", "collection": "1,250",
	} {
		if got := d.textByID(id); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", id, got, want)
		}
	}
	if l := r.listings[0]; l != (collection.Listing{Limit: 51}) {
		t.Errorf("listing of the first page: got %+v, want the newest 51 items", l)
	}
	next := collectionPath(schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}, map[string][]string{"after": {"51.49"}})
	if d.linksTo(next) != 1 {
		t.Errorf("links to the next page %s: got %d, want 1", next, d.linksTo(next))
	}
	if items := d.textByID("items"); !strings.Contains(items, "deleted") || strings.Contains(items, "50 50 min ago") {
		t.Errorf("items: got %s, want 50 items and one that is deleted", items)
	}
	r.get(next)
	r.get(path + "&prefix=4&after=0.42")
	want := []collection.Listing{{AfterVersion: 51, AfterID: "49", Limit: 51}, {Prefix: "4", AfterID: "42", Limit: 51}}
	for n, l := range r.listings[1:] {
		if l != want[n] {
			t.Errorf("listing %d: got %+v, want %+v", n, l, want[n])
		}
	}
	if got := r.get(path + "&item=7").text(); !strings.Contains(got, "the content") {
		t.Errorf("page of item 7: got %s, want its content", got)
	}
	if got := r.get(root + "/lookup?facet=nexon/character&key=a").textByID("collection-link"); got == "" {
		t.Error("link from the look-up page: got none, want one")
	}
}

func TestCollection_HidesOthersVisibility(t *testing.T) {
	r := newRig(t)
	fillCollection(r)
	r.loginRequired, r.collection.Visibility = true, "hr"
	for token, sees := range map[string]bool{"inspect": false, "inspect,see:hr": true} {
		text := r.get(root+"/collection?facet=nexon/character&key=a&item=7", "Authorization", "Bearer "+token).text()
		if got := strings.Contains(text, "1,250") || strings.Contains(text, "the content"); got != sees {
			t.Errorf("collection as %s: got shown %t, want %t", token, got, sees)
		}
	}
}

func TestCollection_RejectsPrefixes(t *testing.T) {
	r := newRig(t)
	for _, prefix := range []string{"%00", strings.Repeat("a", 300)} {
		if d := r.get(root + "/collection?facet=nexon/character&key=a&prefix=" + prefix); d.status != 400 {
			t.Errorf("prefix %.10q: got status %d, want 400", prefix, d.status)
		}
	}
}

func TestSchedule_ShowsCollections(t *testing.T) {
	r := newRig(t)
	fillCollection(r)
	d := r.get(root + "/schedule")
	d.wantRows(t, "collections.nexon", "issues | 1,200 | 98,000 | 3 | 2 | 1 h 30 min ago")
	d.wantRows(t, "collections.github", "No collection is stored.")
}
