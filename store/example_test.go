package store_test

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

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
