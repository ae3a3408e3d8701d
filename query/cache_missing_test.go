package query

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

func TestMissing_IsNotReadAgain(t *testing.T) {
	r := newRig(t)
	for range 5 {
		if a := r.get("new"); a.StatusCode != 202 {
			t.Errorf("got %d, want 202", a.StatusCode)
		}
		if a := r.do(http.MethodGet, "/v1/nexon/character?key=new&key=new"); a.body.Items[1].Status != 202 {
			t.Errorf("a batch: got %d, want 202", a.body.Items[1].Status)
		}
	}
	if got := r.storeReads(); got != 1 {
		t.Errorf("store reads: got %d, want 1", got)
	}
	if r.missCount != 1 {
		t.Errorf("missed keys: got %d, want 1", r.missCount)
	}
	r.putSnapshot("new", 0)
	if a := r.get("new"); a.StatusCode != 200 || a.body.Freshness != store.Fresh {
		t.Errorf("after its settle: got %d %s, want 200 FRESH", a.StatusCode, a.body.Freshness)
	}
	r.set(func() { delete(r.snapshots, entity("new")) })
	r.settle("new", 0)
	if a := r.get("new"); a.StatusCode != 202 {
		t.Errorf("after its deletion: got %d, want 202", a.StatusCode)
	}
}

func TestMissing_IsCachedForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		storeReadCount := func(want int, when string) {
			t.Helper()
			before := r.storeReads()
			r.get("new")
			if got := r.storeReads() - before; got != want {
				t.Errorf("%s store reads: got %d, want %d", when, got, want)
			}
		}
		storeReadCount(1, "at first")
		time.Sleep(missingTTL - time.Millisecond)
		storeReadCount(0, "within its life")
		time.Sleep(time.Millisecond)
		storeReadCount(1, "after its life")
		r.server.onConnection(false)
		storeReadCount(0, "while disconnected, at once,")
		time.Sleep(disconnectedTTL)
		storeReadCount(1, "while disconnected, a second later,")
		time.Sleep(time.Millisecond)
		r.server.onConnection(true)
		storeReadCount(1, "after the reconnect")
	})
}

func TestMissing_DropsALoadOvertakenByASettle(t *testing.T) {
	r := newRig(t)
	pass := r.slow()
	early := make(chan answer, 1)
	go func() { early <- r.get("a") }()
	servicetest.WaitFor(t, testTimeout, "the early read", func() bool { return r.storeReads() == 1 })
	r.set(func() { r.hold = nil })
	r.putSnapshot("a", 0)
	pass()
	<-early
	if a := r.get("a"); a.StatusCode != 200 {
		t.Errorf("after the settle: got %d, want 200", a.StatusCode)
	}
}

func TestMissing_IsBounded(t *testing.T) {
	r := newRig(t)
	m := r.server.cache
	for i := range maxMissing + 10_000 {
		m.putMissing(entity(strconv.Itoa(i)), 0, m.now())
	}
	m.missing.readAt.CleanUp()
	if got := m.missing.readAt.EstimatedSize(); got > maxMissing || got == 0 {
		t.Errorf("cached missing entities: got %d, want at most %d", got, maxMissing)
	}
}

// A client that reads too many unknown keys must be refused before the store is read. Cached
// snapshots must still be served to this client.
func TestMissing_LookupsAreLimitedBeforeTheStore(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("stale", 2*time.Hour)
	r.get("stale")
	r.settle("stale", 8) // this settle message makes the cached entry outdated, so the next read must read the database
	r.get("known-missing")
	r.set(func() { r.exceeded["lookups"] = true })
	before := r.storeReads()
	for method, path := range map[string]string{http.MethodGet: "made-up", http.MethodPost: "made-up/refresh"} {
		a := r.do(method, "/v1/nexon/character/"+path)
		if a.StatusCode != 429 || a.body.Code != "too-many-new-keys" || a.Header.Get("Retry-After") != "7" {
			t.Errorf("%s: got %d %s, want 429 too-many-new-keys", method, a.StatusCode, a.text)
		}
	}
	a := r.do(http.MethodGet, "/v1/nexon/character?key=made-up&key=known-missing&key=made-up-2")
	for i, want := range []int{429, 202, 429} {
		if got := a.body.Items[i].Status; got != want {
			t.Errorf("item %d: got %d, want %d", i, got, want)
		}
	}
	if got := r.storeReads() - before; got != 0 {
		t.Errorf("store reads: got %d, want 0", got)
	}
	if a := r.get("stale"); a.StatusCode != 200 || r.storeReads() == before {
		t.Errorf("a cached entry: got %d after %d store reads, want 200 after one", a.StatusCode, r.storeReads()-before)
	}
}

// In any order of events, a read must find each snapshot that was stored and settled before the
// read, unless it was deleted since.
func TestMissing_IsInvalidAfterASettle(t *testing.T) {
	r := newRig(t)
	const keys, writes = 3, 400
	var stored [keys]atomic.Int64 // for each key, the version in the last delivered settle message; 0 while the key is deleted
	var done atomic.Bool
	var all sync.WaitGroup
	for i := range keys {
		all.Go(func() {
			key := strconv.Itoa(i)
			for n := range int64(writes) {
				r.putSnapshot(key, time.Minute, func(s *store.Snapshot) { s.Version = n + 1 })
				stored[i].Store(n + 1)
				if n%50 == 0 && i == 0 {
					r.server.onConnection(false)
					r.server.onConnection(true)
				}
				stored[i].Store(0)
				r.set(func() { delete(r.snapshots, entity(key)) })
				r.settle(key, 0)
			}
			done.Store(true)
		})
	}
	for reader := range uint64(4) {
		all.Go(func() {
			dice := rand.New(rand.NewPCG(2, reader)) // random numbers that depend only on the reader's number
			for !done.Load() {
				i := dice.IntN(keys)
				before := stored[i].Load()
				e, _, err := r.server.cache.get(t.Context(), everything.Name, entity(strconv.Itoa(i)), r.facet())
				if err != nil || e == nil && before > 0 && stored[i].Load() == before {
					t.Errorf("key %d: got no snapshot, want version %d or later; error %v", i, before, err)
					return
				}
			}
		})
	}
	all.Wait()
}
