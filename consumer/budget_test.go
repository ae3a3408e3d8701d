package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// resize changes the size of a reservation that acquire has made, from `from` bytes to `to` bytes.
// If `to` is 0, the memory is free again.
func (b *memoryBudget) resize(from, to int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used += to - from
	b.admit()
}

func TestSizeEstimates_RiseAtOnceAndFallSlowly(t *testing.T) {
	e := newSizeEstimates()
	if got := e.estimate("character"); got != initialEstimate {
		t.Errorf("estimate of an unknown facet: got %d, want %d", got, initialEstimate)
	}
	e.record("character", 16_000)
	e.record("character", 1_000_000)
	if got := e.estimate("character"); got != 1_000_000 {
		t.Errorf("estimate after one large body: got %d, want 1000000", got)
	}
	for range 1000 {
		e.record("character", 16_000)
	}
	if got := e.estimate("character"); got < 16_000 || got > 17_000 {
		t.Errorf("estimate after a thousand bodies of 16,000 bytes: got %d, want 16000 to 17000", got)
	}
	e.record("union", 0)
	if got := e.estimate("union"); got < 1 {
		t.Errorf("estimate after an empty body: got %d, want at least 1", got)
	}
}

func TestMemoryBudget_AdmitsInOrderAndAlwaysOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		if err := b.acquire(t.Context(), "", 1000); err != nil { // 1000 bytes exceed the limit of 100, but there is no other reservation, so they are granted
			t.Fatal(err)
		}
		order := make(chan int64, 3)
		var wg sync.WaitGroup
		for _, n := range []int64{60, 50, 10} {
			wg.Go(func() {
				if err := b.acquire(t.Context(), "", n); err != nil {
					t.Error(err)
				}
				order <- n
			})
			synctest.Wait()
		}
		b.resize(1000, 0)
		synctest.Wait()
		if got := <-order; got != 60 || len(order) != 0 {
			t.Errorf("first admitted: got %d and %d others, want 60 and none", got, len(order))
		}
		b.resize(60, 70) // enlarge the reservation from 60 to 70 of the 100 bytes; the next waiter needs 50 bytes, so it still waits
		synctest.Wait()
		if len(order) != 0 {
			t.Error("a smaller reservation was granted first, want the queue order")
		}
		b.resize(70, 0)
		wg.Wait()
		if b.used != 60 {
			t.Errorf("bytes in use: got %d, want 60", b.used)
		}
	})
}

func TestMemoryBudget_CancelledWaiterReservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		_ = b.acquire(t.Context(), "", 100)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("stopped")
		left := make(chan error)
		go func() { left <- b.acquire(ctx, "", 90) }()
		synctest.Wait()
		got := make(chan error)
		go func() { got <- b.acquire(t.Context(), "", 20) }()
		synctest.Wait()
		cancel(gone)
		if err := <-left; !errors.Is(err, gone) {
			t.Error(err)
		}
		b.resize(100, 80)
		if err := <-got; err != nil || b.used != 100 {
			t.Errorf("reservation: got %v and %d bytes in use, want no error and 100", err, b.used)
		}
	})
}

func TestMemoryBudget_IsFreeAfterAllReleases(t *testing.T) {
	b := newMemoryBudget(1000)
	var wg sync.WaitGroup
	for seed := range uint64(50) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 9))
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				if rng.IntN(3) == 0 {
					go cancel()
				}
				n := 1 + rng.Int64N(700)
				if b.acquire(ctx, "", n) == nil {
					grown := rng.Int64N(900)
					b.resize(n, grown)
					b.resize(grown, 0)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if b.used != 0 || b.waiting.Len() != 0 {
		t.Errorf("got %d bytes in use and %d waiting, want none", b.used, b.waiting.Len())
	}
}

func TestReservation_OneAtATimeExceedsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		const entities, each = 8, 60 // each entity has a body of 60 bytes, but reserves only 10 bytes at first
		var most int64
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range entities {
			r, err := b.reserve(t.Context(), "", 10)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				for range each {
					if err := r.grow(t.Context(), 1); err != nil {
						t.Error(err)
					}
					mu.Lock()
					most = max(most, b.inUse())
					mu.Unlock()
				}
				r.resize(each)
				time.Sleep(time.Second) // one second of the fake time of the synctest bubble
				r.resize(0)
			})
		}
		wg.Wait() // synctest fails the test if the reservations deadlock
		if most > 100+each {
			t.Errorf("in use: got %d at most, want at most the limit of 100 and one entity of %d", most, each)
		}
		if got := b.inUse(); got != 0 || b.overLimit != nil {
			t.Errorf("at the end: got %d in use, want 0", got)
		}
	})
}

func TestReservation_GrowEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		first, _ := b.reserve(t.Context(), "", 50)
		second, _ := b.reserve(t.Context(), "", 50)
		if err := first.grow(t.Context(), 200); err != nil { // one reservation may exceed the limit of 100 bytes
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		late := errors.New("too late")
		ended := make(chan error, 1)
		go func() { ended <- second.grow(ctx, 80) }()
		synctest.Wait()
		cancel(late)
		if err := <-ended; !errors.Is(err, late) {
			t.Errorf("got %v, want %v", err, late)
		}
		if got := b.inUse(); got != 250 {
			t.Errorf("got %d in use, want 250", got)
		}
		second.resize(0)
		first.resize(0)
		if got := b.inUse(); got != 0 {
			t.Errorf("at the end: got %d in use, want 0", got)
		}
	})
}

func TestReservation_GrowsBeforeNewOnesAreGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		first, _ := b.reserve(t.Context(), "", 50)
		second, _ := b.reserve(t.Context(), "", 50)
		if err := first.grow(t.Context(), 60); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		go func() {
			if _, err := b.reserve(t.Context(), "", 10); err != nil {
				t.Error(err)
			}
			order <- "new"
		}()
		synctest.Wait()
		go func() {
			if err := second.grow(t.Context(), 110); err != nil {
				t.Error(err)
			}
			order <- "growing"
		}()
		synctest.Wait()
		first.resize(0)
		if got := <-order; got != "growing" {
			t.Errorf("got the %s entity first, want the growing one", got)
		}
		second.resize(0)
		<-order
	})
}

func TestReservation_ServesClientsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMemoryBudget(100)
		first, err := b.reserve(t.Context(), "flood", 100)
		if err != nil {
			t.Fatal(err)
		}
		type entered struct {
			client string
			room   *reservation
		}
		order := make(chan entered, 10)
		for _, client := range []string{"flood", "flood", "flood", "quiet"} {
			go func() {
				if r, err := b.reserve(t.Context(), client, 100); err == nil {
					order <- entered{client, r}
				}
			}()
			synctest.Wait()
		}
		if err := first.grow(t.Context(), 150); err != nil { // the reservation `first` may exceed the limit, although others wait
			t.Fatal(err)
		}
		for i, want := range []string{"flood", "quiet", "flood", "flood"} {
			first.resize(0)
			got := <-order
			if got.client != want {
				t.Errorf("entity %d: got one of the client %s, want one of %s", i, got.client, want)
			}
			first = got.room
		}
		first.resize(0)
		if got := b.inUse(); got != 0 {
			t.Errorf("at the end: got %d in use, want 0", got)
		}
	})
}
