package main

import (
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
	"github.com/freshet/freshet/store"
)

func TestExpected_SeesDocumentOfAnotherKey(t *testing.T) {
	s := &site{Site: &harness.Site{Out: io.Discard, Facets: map[string]string{small: "basic", facet: "basic"}}}
	x, err := s.expect()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(true)
	of := func(facet, key string) harness.Reply {
		text, err := x.document(t.Context(), facet, key)
		if err != nil {
			t.Fatal(err)
		}
		return harness.Reply{Snapshot: text}
	}
	if err := x.check(t.Context(), of(small, "a"), "a"); err != nil {
		t.Error(err)
	}
	if err := x.check(t.Context(), of(small, "b"), "a"); err == nil {
		t.Error("document of another key: got no error, want one")
	}
	got := bodies{}
	body := func(snapshot json.RawMessage, freshness string) []byte {
		return store.Encode(fmt.Appendf(nil, `{"snapshot":%s,"freshness":%q}`, snapshot, freshness)).Bytes
	}
	got.add(1, body(of(facet, harness.ContentKey(1)).Snapshot, "FRESH"))
	got.add(1, body(of(facet, harness.ContentKey(1)).Snapshot, "FRESH"))
	got.add(1, body(of(facet, harness.ContentKey(1)).Snapshot, "STALE"))
	got.add(harness.ContentCount+1, body(of(facet, harness.ContentKey(1)).Snapshot, "FRESH"))
	got.add(2, body(of(facet, harness.ContentKey(1)).Snapshot, "FRESH"))
	got.add(3, []byte("no zstd frame"))
	if wrong, err := got.countWrong(t.Context(), x); err != nil || wrong != 2 || got.count() != 5 {
		t.Errorf("wrong documents: got %d of %d, %v, want 2 of 5", wrong, got.count(), err)
	}
}

func TestLanes_LagCountsUncalledRequests(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	l := &lanes{enqueuedAt: map[string]time.Time{"low-1": at(0), "low-2": at(8), "high-1": at(0)}}
	all := []harness.Arrival{{At: at(9), Key: "low-2"}}
	if got := l.lagAt(all, "low-", at(10)); got != 10*time.Second {
		t.Errorf("lag with a request waiting for 10s: got %v, want 10s", got)
	}
	all = append(all, harness.Arrival{At: at(9), Key: "low-1"})
	if got := l.lagAt(all, "low-", at(10)); got != 9*time.Second {
		t.Errorf("lag with delays of 1s and 9s: got %v, want 9s", got)
	}
}
