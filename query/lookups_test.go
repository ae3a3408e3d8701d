package query

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// slowStore takes a fixed time per read, and counts reads and keys.
type slowStore struct {
	takes       time.Duration
	err         error
	panics      bool
	reads       atomic.Int64
	inReads     atomic.Int64
	maxInFlight atomic.Int64
}

func (s *slowStore) read() error {
	s.reads.Add(1)
	n := s.inReads.Add(1)
	defer s.inReads.Add(-1)
	for maxInFlight := s.maxInFlight.Load(); n > maxInFlight && !s.maxInFlight.CompareAndSwap(maxInFlight, n); maxInFlight = s.maxInFlight.Load() {
	}
	time.Sleep(s.takes) // this is virtual time, because the test runs in a synctest bubble
	if s.panics {
		panic("a bug")
	}
	return s.err
}

// Get returns a snapshot of any key except "missing".
func (s *slowStore) Get(_ context.Context, e schemas.Entity) (store.Snapshot, error) {
	err := s.read()
	if err == nil && e.Key == "missing" {
		err = store.ErrNotFound
	}
	return store.Snapshot{State: store.State{Entity: e, Version: 1}}, err
}

func (s *slowStore) GetAll(_ context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	err := s.read()
	all := make([]store.Snapshot, len(of))
	for i, e := range of {
		if all[i].Entity = e; e.Key != "missing" {
			all[i].Version = 1
		}
	}
	return all, err
}

func (s *slowStore) EntityParams(_ context.Context, of []schemas.Entity) ([]map[string]string, error) {
	return make([]map[string]string, len(of)), s.read()
}

func (s *slowStore) Items(context.Context, schemas.Entity, collection.Range) ([]collection.Item, error) {
	return nil, s.read()
}

// readers runs n concurrent reads: read i reads the key that key(i) returns. It returns the error
// of each read.
func (l *lookups) readers(t *testing.T, n int, key func(int) string) []error {
	t.Helper()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, errs[i] = withRecover(func() (any, error) {
				s, err := l.get(t.Context(), entity(key(i)))
				if err == nil && s.Entity != entity(key(i)) {
					err = fmt.Errorf("got %s, want %s", s.Entity, entity(key(i)))
				}
				return s, err
			})()
		})
	}
	all.Wait()
	return errs
}

// isIdle waits until all other goroutines of the synctest bubble have ended or are blocked. It
// fails the test if a slot is still used or a key still waits.
func (l *lookups) isIdle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight != 0 || len(l.waiting) != 0 {
		t.Errorf("afterwards: got %d in flight, %d waiting, want none", l.inFlight, len(l.waiting))
	}
}

func withLookups(t *testing.T, s *slowStore, test func(t *testing.T, l *lookups)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		test(t, &lookups{store: s, breaker: r.server.cache.breaker})
		if l := s.inReads.Load(); l != 0 {
			t.Errorf("reads that go on: got %d, want 0", l)
		}
	})
}

func TestLookups_ReadABurstInFewRoundTrips(t *testing.T) {
	s := &slowStore{takes: 20 * time.Millisecond}
	withLookups(t, s, func(t *testing.T, l *lookups) {
		began := time.Now()
		for i, err := range l.readers(t, 1000, func(i int) string { return fmt.Sprint("k", i) }) {
			if err != nil {
				t.Fatalf("reader %d: %v", i, err)
			}
		}
		if got, limit := s.reads.Load(), int64(maxLookups+1000/maxLookupBatch+maxLookups); got > limit {
			t.Errorf("reads of the store: got %d, want at most %d", got, limit)
		}
		if got := s.maxInFlight.Load(); got > maxLookups {
			t.Errorf("reads in flight: got %d, want at most %d", got, maxLookups)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the burst: got %v, want at most 5 reads of 20 ms", took)
		}
		l.isIdle(t)
	})
}

func TestLookups_ReturnNotFoundPerKey(t *testing.T) {
	withLookups(t, &slowStore{takes: time.Millisecond}, func(t *testing.T, l *lookups) {
		for i, err := range l.readers(t, 100, func(i int) string {
			if i%3 == 0 {
				return "missing"
			}
			return fmt.Sprint("k", i)
		}) {
			if missing := i%3 == 0; missing != errors.Is(err, store.ErrNotFound) {
				t.Errorf("reader %d: got %v, want not found: %v", i, err, missing)
			}
		}
	})
}

// Each reader gets a result and all slots are free again, even if the store fails.
func TestLookups_EndWithAFailingStore(t *testing.T) {
	down := errors.New("the database is unavailable")
	for name, s := range map[string]*slowStore{
		"error": {takes: time.Millisecond, err: down}, "panic": {takes: time.Millisecond, panics: true},
	} {
		t.Run(name, func(t *testing.T) {
			withLookups(t, s, func(t *testing.T, l *lookups) {
				for i, err := range l.readers(t, 300, func(i int) string { return fmt.Sprint("k", i) }) {
					if err == nil {
						t.Fatalf("reader %d: got no error, want one", i)
					}
				}
				l.isIdle(t)
			})
		})
	}
}

func TestLookups_SkipCanceledReaders(t *testing.T) {
	s := &slowStore{takes: time.Second}
	withLookups(t, s, func(t *testing.T, l *lookups) {
		var all sync.WaitGroup
		for i := range maxLookups {
			all.Go(func() { _, _ = l.get(t.Context(), entity(fmt.Sprint("k", i))) })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		for i := range 10 {
			all.Go(func() {
				if _, err := l.get(ctx, entity(fmt.Sprint("left", i))); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a canceled reader: got %v, want its deadline", err)
				}
			})
		}
		all.Wait()
		if got := s.reads.Load(); got != maxLookups {
			t.Errorf("reads of the store: got %d, want %d", got, maxLookups)
		}
	})
}
