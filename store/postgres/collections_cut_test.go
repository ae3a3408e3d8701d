package postgres

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/servicetest"
)

// TestCollection_DatabaseCutAtEachPoint stores pages of a collection. It closes the connection to the
// database at each message: before and after the reads, and before and after the commit. The test
// repeats the write as a worker does. Each page must be stored once, and the outbox must have the
// request of the next page until that page is stored.
func TestCollection_DatabaseCutAtEachPoint(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	address := servicetest.PostgresCopy(t, &template)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	var pieces atomic.Int64 // number of messages until the connection is closed
	filter := func([]byte) bool { return pieces.Add(-1) != 0 }
	u.Host = servicetest.Proxy(t, u.Host, func() (servicetest.Filter, servicetest.Filter) { return filter, filter })
	u.RawQuery += "&pool_max_conns=1"
	s, err := Open(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	all, rules := collection.New(s), collection.Rules{Order: collection.OrderNone, Deletes: collection.DeletesNone}
	const pages, points, rounds = 3, 6, 60
	repeated := 0
	for round := range rounds {
		e := list
		e.Key = fmt.Sprint("list-", round)
		var want []string
		for page := range pages {
			version := int64(1000*round + page + 1)
			var before collection.State
			for before, err = all.State(t.Context(), e); err != nil; {
				before, err = all.State(t.Context(), e)
			}
			before = before.Begin(rules, time.UnixMilli(version), false)
			if before.Walk.Page != page+1 {
				t.Fatalf("seed %d, round %d: got page %d to be next, want %d", seed, round, before.Walk.Page, page+1)
			}
			p := collection.Page{Version: version, Began: time.UnixMilli(version)}
			for range 1 + random.IntN(5) {
				id := fmt.Sprint(page, "-", len(want))
				want = append(want, id)
				p.Items = append(p.Items, collection.Fetched{ID: id, Content: []byte(`{"id":"` + id + `"}`), Hash: [32]byte{byte(len(want))}})
			}
			if page < pages-1 {
				p.Next = fmt.Sprint(page)
			}
			after, err := before.After(rules, p)
			if err != nil {
				t.Fatal(err)
			}
			if random.IntN(pages) == 0 || page == pages-1 {
				pieces.Store(int64(1 + round%points))
			}
			write := []collection.Write{{Entity: e, Rules: rules, Before: before, After: after, Page: p}}
			for _, err = all.Write(t.Context(), write); err != nil; repeated++ {
				_, err = all.Write(t.Context(), write)
			}
			pieces.Store(0)
		}
		items, err := all.Items(t.Context(), e, collection.Range{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, i := range items {
			got = append(got, i.ID)
		}
		slices.Sort(got)
		slices.Sort(want)
		state, err := all.State(t.Context(), e)
		if err != nil || !slices.Equal(got, want) || state.Items != int64(len(want)) || state.Walk.Open() || state.CompleteAt.IsZero() {
			t.Errorf("seed %d, round %d: got items %s and state %+v, %v, want %s", seed, round, strings.Join(got, " "), state, err, strings.Join(want, " "))
		}
	}
	if next, err := s.NextOutboxTime(t.Context(), list.Source); err != nil || !next.IsZero() {
		t.Errorf("seed %d: requests of pages after all walks: got one due at %v, %v, want none", seed, next, err)
	}
	if repeated < rounds/3 {
		t.Errorf("repeated writes: got %d, want at least a third of the %d rounds", repeated, rounds)
	}
}
