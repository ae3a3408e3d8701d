package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// testKeyRanges compares pages of random ranges with the sorted keys of a facet.
func testKeyRanges(b suite) {
	const seed = 23
	rng := rand.New(rand.NewPCG(seed, seed))
	letters := []string{"a", "b", "\uD7FF", "\uE000", "\U0010FFFF", "%", "_", "Z"}
	text := func(maxLength int) (s string) {
		for range rng.IntN(maxLength + 1) {
			s += letters[rng.IntN(len(letters))]
		}
		return s
	}
	stored := map[string]bool{}
	var writes []store.Write
	for n := range 80 {
		key := "k" + text(4)
		if n%2 == 0 {
			key = text(4) + "k"
		}
		if stored[key] {
			continue
		}
		stored[key] = true
		e := schemas.Entity{Source: "nexon", Facet: "f", Key: key}
		writes = append(writes, content(e, 1, key), content(schemas.Entity{Source: "nexon", Facet: "g", Key: key + "x"}, 1, key))
		b.fail(failing(e, 5))
	}
	if _, err := b.store.Write(b.Context(), writes); err != nil {
		b.Fatal(err)
	}
	for range 200 {
		f, after, limit := store.KeyRange{Source: "nexon", Facet: "f", KeyPrefix: text(2)}, text(3), 1+rng.IntN(30)
		var want []string
		for key := range stored {
			if key > after && strings.HasPrefix(key, f.KeyPrefix) {
				want = append(want, key)
			}
		}
		slices.Sort(want)
		want = want[:min(limit, len(want))]
		states, err := b.store.StatesInRange(b.Context(), f, after, limit)
		if err != nil {
			b.Fatal(err)
		}
		statuses, err := b.store.StatusesInRange(b.Context(), f, after, limit)
		if err != nil {
			b.Fatal(err)
		}
		var of, failed []string
		for _, s := range states {
			of = append(of, s.Entity.Key)
			if s.Entity.Facet != "f" || s.Entity.Source != "nexon" || s.Version != 1 {
				b.Fatalf("seed %d: %+v: got the state %+v", seed, f, s)
			}
		}
		for _, s := range statuses {
			failed = append(failed, s.Entity.Key)
		}
		if fmt.Sprintf("%q", of) != fmt.Sprintf("%q", want) || fmt.Sprintf("%q", failed) != fmt.Sprintf("%q", want) {
			b.Fatalf("seed %d: %+v after %q, limit %d: got the states %q and statuses %q, want %q", seed, f, after, limit, of, failed, want)
		}
	}
}

func testRegistrations(b suite) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	b.register(2, x, y)
	got, err := b.store.Registrations(b.Context(), []schemas.Entity{y.Entity, key("nobody"), x.Entity})
	if want := []*prefetched.RegisteredEntity{&y, nil, &x}; err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func testSampleEntities(b suite) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	z.Enabled = false
	b.register(4, x, y, z, registered(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "other"}, 5))
	got, err := b.store.SampleEntities(b.Context(), entity.Source, 10)
	slices.SortFunc(got, func(a, b prefetched.RegisteredEntity) int { return strings.Compare(a.Entity.Key, b.Entity.Key) })
	if want := []prefetched.RegisteredEntity{x, y}; err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := b.store.SampleEntities(b.Context(), entity.Source, 1); err != nil || len(got) != 1 {
		b.Errorf("limit 1: got %+v, %v, want one entity", got, err)
	}
}
