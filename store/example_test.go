package store_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// A batch keeps one write per entity: the one with the highest version.
func ExampleNewBatch() {
	a := schemas.Entity{Source: "nexon", Facet: "character", Key: "a"}
	b := schemas.Entity{Source: "nexon", Facet: "character", Key: "b"}
	batch := store.NewBatch([]store.Write{{Entity: b, Version: 1}, {Entity: a, Version: 6}, {Entity: a, Version: 7}})
	for i, w := range batch.Writes {
		fmt.Println(w.Entity.Key, w.Version)
		batch.Results[i] = store.Changed // a database would set this result
	}
	fmt.Println(batch.InOrder())
	// Output:
	// a 7
	// b 1
	// [changed superseded changed] <nil>
}

// A trigger does not refresh a facet that was checked less than its Backoff ago.
func ExampleTrigger_Fires() {
	now := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	t := store.Trigger{Facet: "general", Backoff: time.Hour}
	fmt.Println(t.Fires(store.State{CheckedAt: now.Add(-10 * time.Minute)}, now))
	fmt.Println(t.Fires(store.State{CheckedAt: now.Add(-2 * time.Hour)}, now))
	fmt.Println(t.Fires(store.State{}, now)) // the facet was never checked, so it is refreshed
	// Output:
	// false
	// true
	// true
}

// Payloads are compressed before they are stored.
func ExampleEncode() {
	p := store.Encode([]byte(`{"name":"anna"}`))
	s := store.Snapshot{State: store.State{Encoding: p.Encoding}, Payload: p.Bytes}
	text, err := s.Decode(nil)
	fmt.Println(p.Encoding, p.Size, string(text), err)
	// Output: zstd 15 {"name":"anna"} <nil>
}
