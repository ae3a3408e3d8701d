package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/store"
)

// testCollectionModel walks a list that changes at random, also between the pages of a walk, and
// repeats some writes. Then the list stays unchanged for two walks. After them the stored items must
// equal the list.
func testCollectionModel(b suite) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	b.Logf("seed %d", seed)
	w := b.walker()
	w.rules.Deletes = collection.DeletesFull
	type element struct{ id, text string }
	var list []element
	mutate := func() {
		for range random.IntN(4) {
			switch n := len(list); {
			case n == 0 || random.IntN(3) == 0:
				list = append(list, element{fmt.Sprint("i", random.IntN(40)), fmt.Sprint(random.IntN(5))})
			case random.IntN(3) == 0:
				at := random.IntN(n)
				list = slices.Delete(list, at, at+1)
			case random.IntN(2) == 0:
				list[random.IntN(n)].text = fmt.Sprint(random.IntN(5))
			default:
				random.Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
			}
		}
		byID := map[string]bool{}
		list = slices.DeleteFunc(list, func(e element) bool {
			was := byID[e.id]
			byID[e.id] = true
			return was
		})
	}
	const perPage = 7
	walk := func(rest bool) {
		for {
			if !rest {
				mutate()
			}
			before := w.state()
			from := 0
			if before.Walk.Open() {
				_, _ = fmt.Sscan(before.Walk.Position, &from)
			}
			var items []collection.Fetched
			for _, e := range list[min(from, len(list)):min(from+perPage, len(list))] {
				items = append(items, fetched(e.id, e.text))
			}
			next := ""
			if from+perPage < len(list) {
				next = fmt.Sprint(from + perPage)
			}
			if got, err := w.tryPage(before, next, items...); got != collection.Stored || err != nil {
				b.Fatalf("seed %d, page at %d: got %d, %v", seed, from, got, err)
			}
			if random.IntN(4) == 0 {
				if got, err := w.tryPage(before, next, fetched("repeated", "x")); got != collection.Moved || err != nil {
					b.Fatalf("seed %d, repeated page at %d: got %d, %v, want %d", seed, from, got, err, collection.Moved)
				}
			}
			if next == "" {
				return
			}
		}
	}
	for range 30 {
		walk(false)
	}
	walk(true)
	walk(true)
	items, err := w.reads.Items(b.Context(), entity, collection.Range{Limit: 1000})
	if err != nil {
		b.Fatal(err)
	}
	got := map[string]store.Hash{}
	for _, i := range items {
		got[i.ID] = i.Hash
	}
	for _, e := range list {
		if want := fetched(e.id, e.text).Hash; got[e.id] != want {
			b.Errorf("seed %d, item %s: got hash %x, want %x", seed, e.id, got[e.id], want)
		}
	}
	if s := w.state(); len(got) != len(list) || s.Items != int64(len(list)) {
		b.Errorf("seed %d: got %d items and the count %d, want %d", seed, len(got), s.Items, len(list))
	}
}
