package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
)

func TestEstimatesRiseAtOnceAndFallSlowly(t *testing.T) {
	e := newEstimates()
	if got := e.expect("character"); got != firstEstimate {
		t.Errorf("of an unknown facet: %d", got)
	}
	e.saw("character", 16_000)
	e.saw("character", 1_000_000)
	if got := e.expect("character"); got != 1_000_000 {
		t.Errorf("after one large body: %d", got)
	}
	for range 1000 {
		e.saw("character", 16_000)
	}
	if got := e.expect("character"); got < 16_000 || got > 17_000 {
		t.Errorf("after a thousand of 16,000 bytes: %d", got)
	}
	e.saw("union", 0)
	if got := e.expect("union"); got < 1 {
		t.Errorf("after an empty body: %d", got)
	}
}

func TestTheBudgetAdmitsInOrderAndAlwaysOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
		if err := b.acquire(t.Context(), "", 1000); err != nil { // alone it may
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
			t.Errorf("%d was admitted first, %d others", got, len(order))
		}
		b.resize(60, 70) // the answer was larger: nobody is admitted for it
		synctest.Wait()
		if len(order) != 0 {
			t.Error("a small one overtook")
		}
		b.resize(70, 0)
		wg.Wait()
		if b.used != 60 {
			t.Errorf("%d bytes are in use", b.used)
		}
	})
}

func TestWhoLeavesTheQueueForRoomTakesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(100)
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
			t.Errorf("%v, %d in use", err, b.used)
		}
	})
}

func TestTheBudgetIsWholeAgainWhenAllHaveLeft(t *testing.T) {
	b := newBudget(1000)
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
		t.Errorf("%d in use, %d waiting", b.used, b.waiting.Len())
	}
}
