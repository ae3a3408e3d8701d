package status

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	testTTL     = 2 * time.Second
	testTimeout = 5 * time.Second
)

// testRead is a read whose result is its number. It can hang or fail.
type testRead struct {
	reads        atomic.Int64
	hangs, fails atomic.Bool
}

func (r *testRead) read(ctx context.Context) (int64, error) {
	n := r.reads.Add(1)
	if r.hangs.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if r.fails.Load() {
		return 0, errors.New("it fails")
	}
	return n, nil
}

func newCached(read func(context.Context) (int64, error), maxStale time.Duration) *Cached[int64] {
	return &Cached[int64]{Read: read, Timeout: testTimeout, MaxStale: maxStale, Clock: time.Now, Log: slog.New(slog.DiscardHandler)}
}

func TestCached_ReturnsStaleResultAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxStale = 30 * time.Second
		var r testRead
		c := newCached(r.read, maxStale)
		get := func() (int64, error) { n, _, err := c.Get(t.Context(), testTTL); return n, err }
		if n, err := get(); n != 1 || err != nil {
			t.Errorf("first: got %d, %v, want 1", n, err)
		}
		if n, _ := get(); n != 1 || r.reads.Load() != 1 {
			t.Errorf("within the TTL: got %d in %d reads, want 1 in 1", n, r.reads.Load())
		}
		r.hangs.Store(true)
		for range 10 {
			<-time.After(testTTL / 2)
			began := time.Now()
			if n, err := get(); n != 1 || err != nil || time.Since(began) > 0 {
				t.Errorf("while the read hangs: got %d, %v after %v, want 1 at once", n, err, time.Since(began))
			}
		}
		if n := r.reads.Load(); n > 3 {
			t.Errorf("reads: got %d, want at most 3", n)
		}
		<-time.After(testTimeout)
		r.hangs.Store(false)
		r.fails.Store(true)
		<-time.After(testTTL + maxStale)
		if _, err := get(); err == nil {
			t.Error("expired result and a failing read: got no error, want one")
		}
		r.fails.Store(false)
		<-time.After(testTTL)
		if n, err := get(); n != r.reads.Load() || err != nil {
			t.Errorf("after recovery: got %d, %v, want %d", n, err, r.reads.Load())
		}
		before := r.reads.Load()
		<-time.After(time.Hour)
		if n, err := get(); n != before+1 || err != nil {
			t.Errorf("after an hour without calls: got %d, %v, want %d", n, err, before+1)
		}
	})
}

func TestCached_WaitsForTheNextRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r testRead
		c := newCached(r.read, 0)
		for want := range int64(3) {
			if n, at, err := c.Get(t.Context(), testTTL); n != want+1 || !at.Equal(time.Now()) || err != nil {
				t.Errorf("got %d of %v, %v, want %d of now", n, at, err, want+1)
			}
			<-time.After(testTTL)
		}
		read := time.Now().Add(-testTTL)
		r.fails.Store(true)
		for range 2 {
			if n, at, err := c.Get(t.Context(), testTTL); n != 3 || !at.Equal(read) || err == nil || r.reads.Load() != 4 {
				t.Errorf("failing read: got %d of %v, %v in %d reads, want 3 of %v, an error, 4 reads", n, at, err, r.reads.Load(), read)
			}
		}
	})
}

func TestCached_ReturnsWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r testRead
		r.hangs.Store(true)
		c := newCached(r.read, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, at, err := c.Get(ctx, testTTL); !errors.Is(err, errNotReadYet) || !at.IsZero() || time.Since(began) != time.Second {
			t.Errorf("got the time %v, %v after %v, want no time and %v after 1s", at, err, time.Since(began), errNotReadYet)
		}
		<-time.After(testTimeout)
	})
}

func TestCached_ReturnsPanicAsError(t *testing.T) {
	c := newCached(func(context.Context) (int64, error) { panic("a bug") }, 0)
	for range 2 {
		if _, at, err := c.Get(t.Context(), 0); !errors.Is(err, ErrPanic) || !at.IsZero() {
			t.Errorf("got the time %v, %v, want no time and %v", at, err, ErrPanic)
		}
	}
}
