package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

func testUnknown(b suite) {
	if _, err := b.store.Get(b.Context(), entity); !errors.Is(err, store.ErrNotFound) {
		b.Errorf("Get: %v", err)
	}
	states, err := b.store.States(b.Context(), []schemas.Entity{entity})
	if err != nil || len(states) != 1 || states[0] != (store.State{Entity: entity}) {
		b.Errorf("States: %+v, %v", states, err)
	}
	if states, err := b.store.States(b.Context(), nil); err != nil || len(states) != 0 {
		b.Errorf("States of nothing: %+v, %v", states, err)
	}
	if all, err := b.store.GetAll(b.Context(), nil); err != nil || len(all) != 0 {
		b.Errorf("GetAll of nothing: %+v, %v", all, err)
	}
	if results, err := b.store.Write(b.Context(), nil); err != nil || len(results) != 0 {
		b.Errorf("Write of nothing: %v, %v", results, err)
	}
	if err := b.store.Ping(b.Context()); err != nil {
		b.Error(err)
	}
}

func testGetAll(b suite) {
	e := func(n int) schemas.Entity {
		return schemas.Entity{Source: "nexon", Facet: "character", Key: fmt.Sprint(n)}
	}
	const stored = 100
	want := make([]store.Snapshot, 2*stored) // the entities of the second half are not stored
	var writes []store.Write
	for n := range stored {
		writes = append(writes, content(e(n), int64(n+1), fmt.Sprint(n)))
		if n%3 == 0 {
			writes[n] = notFound(e(n), int64(n+1))
		}
	}
	if _, err := b.store.Write(b.Context(), writes); err != nil {
		b.Fatal(err)
	}
	for n := range want {
		if want[n].Entity = e(n); n < stored {
			want[n] = b.get(e(n))
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, many := range []int{1, 2, 50, 1000} { // numbers of entities to read; if the number is 1000, some entities are read several times
		var asked []schemas.Entity
		var which []int
		for range many {
			n := rng.IntN(len(want))
			which = append(which, n)
			asked = append(asked, e(n))
		}
		all, err := b.store.GetAll(b.Context(), asked)
		if err != nil || len(all) != many {
			b.Fatalf("GetAll: got %d snapshots for %d entities, %v", len(all), many, err)
		}
		for i, n := range which {
			if !reflect.DeepEqual(all[i], want[n]) {
				b.Fatalf("snapshot %d of %d: got %+v, want %+v", i, many, all[i], want[n])
			}
		}
	}
}

func testKeys(b suite) {
	var writes []store.Write
	var want []store.Result
	for _, source := range []string{"nexon", "nexo"} {
		for _, facet := range []string{"n", "character"} {
			for _, key := range []string{"a", "A", "a ", "'; DROP TABLE snapshot_state; --", `"\`, "%", "_", "가", "\u1100\u1161", strings.Repeat("k", 256), "$1", "\u00e9", "e\u0301"} {
				e := schemas.Entity{Source: source, Facet: facet, Key: key}
				writes = append(writes, content(e, 1, fmt.Sprint(len(writes))))
				want = append(want, store.Changed)
			}
		}
	}
	b.write(want, writes...)
	for i, w := range writes {
		b.wantSnapshot(w.Entity, fmt.Sprint(i), 1, 1, 1, 1)
	}
}
