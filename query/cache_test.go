package query

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

func TestCache_HitDoesNotReadTheStore(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	for range 5 {
		if a := r.get("a"); a.StatusCode != 200 || string(a.body.Snapshot) != content {
			t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
		}
	}
	if r.storeReads() != 1 {
		t.Errorf("store reads: got %d, want 1", r.storeReads())
	}
}

func TestCache_SettleInvalidatesAnEntry(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	if a := r.get("a"); a.body.Freshness != store.Stale {
		t.Fatalf("got %s, want STALE", a.text)
	}
	r.putSnapshot("a", 0)
	if a := r.get("a"); a.body.Freshness != store.Fresh {
		t.Errorf("got %s, want FRESH", a.text)
	}
}

func TestCache_ConcurrentReadsShareOneLoad(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	hold := make(chan struct{})
	r.hold = hold
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if a := r.get("a"); a.StatusCode != 200 {
				t.Errorf("got %d, want 200", a.StatusCode)
			}
		})
	}
	servicetest.WaitFor(t, testTimeout, "the read", func() bool { return r.storeReads() == 1 })
	close(hold)
	wg.Wait()
	if n := r.storeReads(); n > 3 { // concurrent reads share one load; but a few may begin after its end, and cause another load
		t.Errorf("got %d store reads, want at most 3", n)
	}
}

// A load that began before a settle message may return the snapshot that was stored before that
// message. Such a result must not be cached, and later reads must not get it.
func TestCache_DropsALoadOvertakenByASettle(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	hold := make(chan struct{})
	r.mu.Lock()
	r.hold = hold
	r.mu.Unlock()
	early := make(chan answer, 1)
	go func() { early <- r.get("a") }()
	servicetest.WaitFor(t, testTimeout, "the early read", func() bool { return r.storeReads() == 1 })
	r.mu.Lock()
	r.hold = nil
	r.mu.Unlock()
	r.putSnapshot("a", 0)
	if a := r.get("a"); a.body.Freshness != store.Fresh {
		t.Errorf("after the settle: got %s, want FRESH", a.text)
	}
	close(hold)
	if a := <-early; a.body.Freshness != store.Stale { // this read began before the settle message, so it may return the earlier snapshot
		t.Errorf("before the settle: got %s, want STALE", a.text)
	}
	if a := r.get("a"); a.body.Freshness != store.Fresh {
		t.Errorf("the overtaken load was cached: got %s, want FRESH", a.text)
	}
}

// A settle message may arrive during each load, for example of another entity of the same stripe. The
// loaded snapshot is then outdated, but it is the only one to serve when the store fails.
func TestCache_KeepsAnOvertakenLoadAsFallback(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 0)
	pass := r.slow()
	early := make(chan answer, 1)
	go func() { early <- r.get("a") }()
	servicetest.WaitFor(t, testTimeout, "the early read", func() bool { return r.storeReads() == 1 })
	r.settle("a", 8)
	pass()
	<-early
	r.mu.Lock()
	r.storeErr = errors.New("down")
	r.mu.Unlock()
	if a := r.get("a"); a.StatusCode != 200 {
		t.Errorf("without the store: got %d %s, want 200", a.StatusCode, a.text)
	}
}

func TestCache_ServesFallbackWithAgeWithoutDatabase(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 10*time.Minute)
	r.get("a")
	r.mu.Lock()
	r.storeErr = errors.New("down")
	r.mu.Unlock()
	r.settle("a", 8) // this settle message makes the cached entry outdated; the store can't be read, so the entry is served as a fallback
	for range 20 {
		a := r.get("a")
		if a.StatusCode != 200 || string(a.body.Snapshot) != content {
			t.Errorf("got %d %s, want 200", a.StatusCode, a.text)
		}
		if age, err := strconv.Atoi(a.Header.Get("Age")); err != nil || age < 600 {
			t.Errorf("Age: got %q, want at least 600", a.Header.Get("Age"))
		}
	}
	if a := r.do("GET", "/v1/nexon/character?key=a&key=a"); a.StatusCode != 200 || len(a.body.Items) != 2 || a.body.Items[1].Freshness != store.Fresh {
		t.Errorf("several: got %d %s, want 200 FRESH", a.StatusCode, a.text)
	}
	if a := r.do("GET", "/v1/nexon/character?key=a&key=b"); a.StatusCode != 200 || a.body.Items[0].Status != 200 || a.body.Items[1].Status != 503 {
		t.Errorf("several, one unknown: got %d %s, want 200", a.StatusCode, a.text)
	}
	if a := r.do("GET", "/v1/nexon/character?key=c&key=b"); a.StatusCode != 503 {
		t.Errorf("several, all unknown: got %d %s, want 503", a.StatusCode, a.text)
	}
	if a := r.get("b"); a.StatusCode != 503 || a.Header.Get("Retry-After") != "1" {
		t.Errorf("never seen: got %d, want 503", a.StatusCode)
	}
	if n := r.storeReads(); n > 30 { // the breaker must have opened, so that later reads fail without a call of the store
		t.Errorf("got %d store reads, want at most 30", n)
	}
	if got := testutil.ToFloat64(r.server.metrics.breaker); got == 0 {
		t.Error("the breaker is not open")
	}
	r.mu.Lock()
	r.storeErr = nil
	r.mu.Unlock()
	servicetest.WaitFor(t, testTimeout, "the breaker's next try", func() bool { return r.get("b").StatusCode == 202 })
}

func TestCache_ExpiresInOneSecondWhileDisconnected(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", 2*time.Hour)
	r.get("a")
	r.server.onConnection(false)
	m := r.server.cache
	known, _ := m.entries.GetIfPresent(entity("a"))
	now := m.now()
	if !m.isValid(known, now) || m.isValid(known, now+int64(disconnectedTTL)) {
		t.Error("while disconnected an entry must be valid for one second")
	}
	r.server.onConnection(true)
	if m.isValid(known, now) {
		t.Error("an entry from before the connection must be invalid")
	}
	r.get("a")
	known, _ = m.entries.GetIfPresent(entity("a"))
	if now = m.now(); !m.isValid(known, now) || m.isValid(known, now+int64(cacheTTL)) {
		t.Error("while connected an entry must be valid for 30 s")
	}
}

func TestCache_FallsBackFromAHangingDatabase(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	r.get("a")
	hold := make(chan struct{})
	defer close(hold)
	r.mu.Lock()
	r.hold = hold
	r.mu.Unlock()
	r.settle("a", 8)
	if a := r.get("a"); a.StatusCode != 200 || a.body.Freshness != store.Fresh { // this read would not return after a deadlock
		t.Errorf("got %d %s, want 200 FRESH", a.StatusCode, a.text)
	}
}

func TestCache_IsBounded(t *testing.T) {
	r := newRig(t, func(r *rig) { r.config.Memory = 64 << 10 })
	for i := range 500 {
		key := fmt.Sprint(i)
		r.putSnapshot(key, time.Minute)
		r.get(key, "Accept-Encoding", "gzip") // this read also caches the gzip body
	}
	r.server.cache.entries.CleanUp()
	if n := r.server.cache.entries.WeightedSize(); n > 64<<10 || n == 0 {
		t.Errorf("cache weight: got %d bytes, want less", n)
	}
	big := r.server.cache
	entry := newEntry(r.snapshots[entity("1")], r.facet(), big.now(), nil, big.reweigh)
	before := entry.weight()
	if err := entry.encodeOnce(&entry.bodies[identity]); err != nil || entry.weight() <= before {
		t.Errorf("weight: got %d, %v, want more than %d", entry.weight(), err, before)
	}
}

// In any order of events, no read may return a version below the version in the last settle message
// that was received before the read.
func TestCache_NoReadIsOlderThanTheLastSettle(t *testing.T) {
	r := newRig(t)
	const keys, writes = 3, 300
	var floors [keys]atomic.Int64
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			key := fmt.Sprint(i)
			for n := range int64(writes) {
				r.putSnapshot(key, time.Minute, func(s *store.Snapshot) { s.Version = n + 1 })
				floors[i].Store(n + 1)
				if n%50 == 0 && i == 0 {
					r.server.onConnection(false)
					r.server.onConnection(true)
				}
			}
			done.Store(true)
		})
	}
	for reader := range 4 {
		wg.Go(func() {
			dice := rand.New(rand.NewPCG(1, uint64(reader)))
			for !done.Load() {
				i := dice.IntN(keys)
				floor := floors[i].Load()
				if floor == 0 {
					continue
				}
				e, fallback, err := r.server.cache.get(t.Context(), everything.Name, entity(fmt.Sprint(i)), r.facet())
				if err != nil || (e.Version < floor && !fallback) {
					t.Errorf("version: got %d, %v, want at least %d or a fallback", e.Version, err, floor)
					return
				}
				one := r.server.cache.getAll(t.Context(), everything.Name, []schemas.Entity{entity(fmt.Sprint(i))}, r.facet())[0]
				if one.err != nil || (one.Version < floor && !one.fallback) {
					t.Errorf("version: got %d, %v, want at least %d or a fallback", one.Version, one.err, floor)
					return
				}
			}
		})
	}
	wg.Wait()
}
