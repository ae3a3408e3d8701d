package find

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

// testLifetimes are the lifetimes of all facets in the tests of items.
var testLifetimes = store.Lifetimes{FreshFor: time.Hour, NotFoundFor: time.Hour, KeepFor: 48 * time.Hour}

// expectedItem has the rows that a test has stored of one entity.
type expectedItem struct {
	state      *store.State
	failure    *store.Status
	registered *prefetched.RegisteredEntity
}

// matches reports whether a list with the filter contains the item.
func (i expectedItem) matches(f ItemFilter, now time.Time) bool {
	freshness := store.Freshness("")
	if i.state != nil {
		freshness, _ = store.FreshnessOf(i.state, testLifetimes, now)
	}
	switch f {
	case AllItems:
		return true
	case FreshItems:
		return freshness == store.Fresh
	case StaleItems:
		return freshness == store.Stale
	case NotFound:
		return freshness == store.NotFound
	case FailingItems:
		return i.failure != nil
	case HeldItems:
		return i.failure != nil && (i.failure.State != store.Failed || i.failure.Until.After(now))
	case NeverFetched:
		return i.registered != nil && i.state == nil
	case ChangedHour, ChangedDay:
		return i.state != nil && !i.state.NotFound && now.Sub(i.state.UpdatedAt) < map[ItemFilter]time.Duration{ChangedHour: time.Hour, ChangedDay: 24 * time.Hour}[f]
	case ReadHour, ReadDay:
		return i.registered != nil && now.Sub(i.registered.History.ReadAt) < map[ItemFilter]time.Duration{ReadHour: time.Hour, ReadDay: 24 * time.Hour}[f]
	}
	return false
}

// TestItems_PagesContainExactlyTheMatches stores random entities, and compares the pages of every
// filter and prefix with the entities that match.
func TestItems_PagesContainExactlyTheMatches(t *testing.T) {
	const seed = 2301
	rng := rand.New(rand.NewPCG(seed, seed))
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	now := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	stored := map[string]expectedItem{}
	var writes []store.Write
	var registrations []prefetched.RegisteredEntity
	for n := range 400 {
		e := schemas.Entity{Source: "nexon", Facet: "character", Key: fmt.Sprintf("%c%03d", 'a'+rune(rng.IntN(3)), n)}
		var item expectedItem
		age := time.Duration(rng.IntN(3*24*60)) * time.Minute
		switch rng.IntN(4) {
		case 0, 1:
			p := store.Encode([]byte(`{"n":1}`))
			item.state = &store.State{Encoding: p.Encoding, CheckedAt: now.Add(-age / 4), FetchedAt: now.Add(-age), UpdatedAt: now.Add(-age / 4)}
			writes = append(writes, store.Write{
				Entity: e, Version: 1, CheckedAt: now.Add(-age / 4), Kind: store.Content, Hash: store.Hash{1},
				Payload: func() (store.Payload, error) { return p, nil },
			})
			item.state.FetchedAt = now.Add(-age / 4)
		case 2:
			item.state = &store.State{NotFound: true, CheckedAt: now.Add(-age / 4)}
			writes = append(writes, store.Write{Entity: e, Version: 1, CheckedAt: now.Add(-age / 4), Kind: store.KindNotFound})
		}
		if rng.IntN(3) == 0 || item.state == nil {
			item.registered = &prefetched.RegisteredEntity{Entity: e, Enabled: true, Due: now, History: prefetched.History{ReadAt: now.Add(-age)}}
			registrations = append(registrations, *item.registered)
		}
		if rng.IntN(5) == 0 {
			item.failure = &store.Status{
				Entity: e, State: []store.StatusState{store.Retrying, store.Failed, store.Suspended}[rng.IntN(3)], Version: 5,
				Until: now.Add(time.Duration(rng.IntN(120)-60) * time.Minute), Lane: schemas.Low, Since: now, UpdatedAt: now,
			}
			if err := db.WriteFailure(t.Context(), *item.failure, nil); err != nil {
				t.Fatal(err)
			}
		}
		stored[e.Key] = item
	}
	if _, err := db.Write(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	if _, err := db.RegisterEntities(t.Context(), registrations); err != nil {
		t.Fatal(err)
	}
	r := ItemReader{Walker: db, Lookup: db, Lifetimes: func(string, string) store.Lifetimes { return testLifetimes }, Now: func() time.Time { return now }}
	for _, filter := range ItemFilters {
		for _, prefix := range []string{"", "a", "b1", "z"} {
			var want, got []string
			for key, item := range stored {
				if strings.HasPrefix(key, prefix) && item.matches(filter, now) {
					want = append(want, key)
				}
			}
			slices.Sort(want)
			q := ItemQuery{Source: "nexon", Facet: "character", Prefix: prefix, Filter: filter}
			for pages := 0; ; pages++ {
				page, err := r.Find(t.Context(), q, func(schemas.Entity, string) bool { return true })
				if err != nil || len(page.Items) > MaxItems || pages > 20 {
					t.Fatalf("seed %d: filter %q, page %d: got %d items, %v", seed, filter, pages, len(page.Items), err)
				}
				for _, item := range page.Items {
					got = append(got, item.Key)
				}
				if q.After = page.Next; page.Next == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: filter %q, prefix %q: got %d keys, want %d\ngot  %v\nwant %v", seed, filter, prefix, len(got), len(want), got, want)
			}
		}
	}
}

func TestItems_LeaveOutInvisibleEntities(t *testing.T) {
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for key, label := range map[string]string{"public": "", "secret": "hr"} {
		w := store.Write{Entity: schemas.Entity{Source: "nexon", Facet: "character", Key: key}, Version: 1, CheckedAt: time.Now(), Kind: store.KindNotFound, Visibility: label}
		if _, err := db.Write(t.Context(), []store.Write{w}); err != nil {
			t.Fatal(err)
		}
	}
	r := ItemReader{Walker: db, Lookup: db, Lifetimes: func(string, string) store.Lifetimes { return testLifetimes }, Now: time.Now}
	page, err := r.Find(t.Context(), ItemQuery{Source: "nexon", Facet: "character"}, func(_ schemas.Entity, visibility string) bool { return visibility == "" })
	if err != nil || len(page.Items) != 1 || page.Items[0].Key != "public" {
		t.Errorf("got %+v, %v, want only the item public", page.Items, err)
	}
	if _, err := r.Find(t.Context(), ItemQuery{Source: "nexon", Facet: "character", Filter: "odd"}, nil); err == nil {
		t.Error("an unknown filter was accepted")
	}
}
