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

func withBreaker(s Store) *database {
	b := &base{source: &source.Source{}, metrics: newMetrics("nexon", schemas.High, prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler)}
	return newDatabase(b, s, newGates(nil))
}

// A worker has at most one lookup and one write in flight. If a database call counted as a failure
// only when it ends, two hanging calls would not be enough to open the breaker.
func TestDBBreaker_OpensWhileDatabaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := withBreaker(nil)
		woken, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- d.retry(t.Context(), opWrite, func(context.Context) error {
				<-woken
				return nil
			})
		}()
		<-time.After(4*slowThreshold + slowThreshold/2)
		if s := d.breaker.State(); s != gobreaker.StateClosed {
			t.Errorf("after four counted failures: got %s, want closed", s)
		}
		<-time.After(slowThreshold)
		if s := d.breaker.State(); s != gobreaker.StateOpen {
			t.Errorf("after five counted failures: got %s, want open", s)
		}
		close(woken)
		if err := <-done; err != nil {
			t.Errorf("a slow write: got %v, want no error", err)
		}
		<-time.After(2 * dbBreakerTimeout)
		if err := d.retry(t.Context(), opReachDB, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if s := d.breaker.State(); s != gobreaker.StateClosed {
			t.Errorf("after a fast call: got %s, want closed", s)
		}
	})
}

func TestDBBreaker_CountsSlowCallOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := withBreaker(nil)
		for range 3 {
			err := d.retry(t.Context(), opWrite, func(context.Context) error {
				<-time.After(slowThreshold + time.Millisecond)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if c := d.breaker.Counts(); c.TotalFailures != 3 || c.TotalSuccesses != 0 {
			t.Errorf("counts: got %+v, want 3 failures and no success", c)
		}
		<-time.After(10 * slowThreshold)
		if c := d.breaker.Counts(); c.TotalFailures > 3 {
			t.Errorf("counts after the end of a call: got %+v, want at most 3 failures", c)
		}
	})
}

func TestDBBreaker_SlowProbeKeepsItOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := withBreaker(nil)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var tries atomic.Int32
		go func() {
			_ = d.retry(ctx, opWrite, func(context.Context) error {
				if tries.Add(1) <= 5 {
					return errors.New("it is down")
				}
				<-time.After(3 * slowThreshold)
				return nil
			})
		}()
		for began := time.Now(); d.breaker.State() != gobreaker.StateHalfOpen || tries.Load() < 6; <-time.After(10 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatalf("breaker a minute after the first of five failures: got %s after %d tries, want half-open in the sixth", d.breaker.State(), tries.Load())
			}
		}
		<-time.After(3*slowThreshold + time.Millisecond)
		if s := d.breaker.State(); s != gobreaker.StateOpen {
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
		d := withBreaker(emptyStore{})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go d.probe(ctx)
		for range 5 {
			_, _ = d.breaker.Execute(func() (struct{}, error) { return struct{}{}, errors.New("it is down") })
		}
		if s := d.breaker.State(); s != gobreaker.StateOpen {
			t.Fatalf("after five failures: got %s, want open", s)
		}
		<-time.After(2 * dbBreakerTimeout)
		if s := d.breaker.State(); s != gobreaker.StateClosed {
			t.Errorf("%v after five failures: got %s, want closed", 2*dbBreakerTimeout, s)
		}
	})
}
