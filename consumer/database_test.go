package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

func withBreaker() *Worker {
	w := &Worker{
		gates: newGates(nil), metrics: newMetrics("nexon", schemas.High, prometheus.NewRegistry()),
		dbHealth: dbHealth{dbBreakerChanged: make(chan struct{}, 1)}, log: slog.New(slog.DiscardHandler),
	}
	w.dbBreaker = newDBBreaker(w)
	return w
}

// A worker has at most one lookup and one write in flight. If a database call counted as a failure
// only when it ends, two hanging calls would not be enough to open the breaker.
func TestDBBreaker_OpensWhileDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker()
		woken, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- w.retryDB(t.Context(), opWrite, func(context.Context) error {
				<-woken
				return nil
			})
		}()
		<-time.After(4*slowThreshold + slowThreshold/2)
		if s := w.dbBreaker.State(); s != gobreaker.StateClosed {
			t.Errorf("after four counted failures: got %s, want closed", s)
		}
		<-time.After(slowThreshold)
		if s := w.dbBreaker.State(); s != gobreaker.StateOpen {
			t.Errorf("after five counted failures: got %s, want open", s)
		}
		close(woken)
		if err := <-done; err != nil {
			t.Errorf("a slow write: got %v, want no error", err)
		}
		<-time.After(2 * dbBreakerTimeout)
		if err := w.retryDB(t.Context(), opReachDB, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if s := w.dbBreaker.State(); s != gobreaker.StateClosed {
			t.Errorf("after a fast call: got %s, want closed", s)
		}
	})
}

func TestDBBreaker_CountsSlowCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker()
		for range 3 {
			err := w.retryDB(t.Context(), opWrite, func(context.Context) error {
				<-time.After(slowThreshold + time.Millisecond)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if c := w.dbBreaker.Counts(); c.TotalFailures != 3 || c.TotalSuccesses != 0 {
			t.Errorf("counts: got %+v, want 3 failures and no success", c)
		}
		<-time.After(10 * slowThreshold)
		if c := w.dbBreaker.Counts(); c.TotalFailures > 3 {
			t.Errorf("counts after the end of a call: got %+v, want at most 3 failures", c)
		}
	})
}

func TestDBBreaker_SlowProbeKeepsItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var tries atomic.Int32
		go func() {
			_ = w.retryDB(ctx, opWrite, func(context.Context) error {
				if tries.Add(1) <= 5 {
					return errors.New("it is down")
				}
				<-time.After(3 * slowThreshold)
				return nil
			})
		}()
		for began := time.Now(); w.dbBreaker.State() != gobreaker.StateHalfOpen || tries.Load() < 6; <-time.After(10 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("breaker a minute after the first of five failures: got %s after %d tries, want half-open in the sixth", w.dbBreaker.State(), tries.Load())
			}
		}
		<-time.After(3*slowThreshold + time.Millisecond)
		if s := w.dbBreaker.State(); s != gobreaker.StateOpen {
			t.Errorf("after a slow probe: got %s, want open", s)
		}
	})
}

// emptyStore is a database without rows that works.
type emptyStore struct{ Store }

func (emptyStore) States(context.Context, []schemas.Entity) ([]store.State, error) { return nil, nil }

// All records can wait until the breaker is closed. Then only its probes call the database.
func TestDBBreaker_ClosesWithoutCallsOfRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := withBreaker()
		w.store, w.source = emptyStore{}, &source.Source{}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go w.probeDatabase(ctx)
		for range 5 {
			_, _ = w.dbBreaker.Execute(func() (struct{}, error) { return struct{}{}, errors.New("it is down") })
		}
		if s := w.dbBreaker.State(); s != gobreaker.StateOpen {
			t.Fatalf("after five failures: got %s, want open", s)
		}
		<-time.After(2 * dbBreakerTimeout)
		if s := w.dbBreaker.State(); s != gobreaker.StateClosed {
			t.Errorf("%v after five failures: got %s, want closed", 2*dbBreakerTimeout, s)
		}
	})
}
