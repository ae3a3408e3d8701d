package limiter

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// unbounded are lanes that never refuse: what remains is the cost of asking.
var unbounded = Lanes{
	policy: Policy{Window: time.Second}, reach: time.Millisecond,
	lanes: [3]lane{{}, {time.Microsecond, 1_000_000}, {}},
}

// hammer counts how often do succeeds in so many goroutines within a time.
func hammer(clients int, d time.Duration, do func() error) (float64, error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for range clients {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := do(); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(n.Load()) / d.Seconds(), nil
}

// BenchmarkAcquire compares permits a second with PINGs a second of as many
// clients of the same Redis, in turn.
func BenchmarkAcquire(b *testing.B) {
	rdb := redis.NewClient(&redis.Options{Addr: servicetest.RedisAddress(b), PoolSize: 64, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer func() { _ = rdb.Close() }()
	for _, clients := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(clients, "-clients"), func(b *testing.B) {
			l := New(servicetest.Name("bench"), unbounded, rdb, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			ctx, stop := context.WithCancel(b.Context())
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx) }()
			// The state starts quiet.
			if p, err := l.Acquire(ctx, schemas.Low); err != nil || !p.Spend() {
				b.Fatal(err)
			}
			var permits, pings, rounds float64
			for b.Loop() {
				const slice = 200 * time.Millisecond
				n, err := hammer(clients, slice, func() error {
					p, err := l.Acquire(ctx, schemas.Low)
					if err == nil {
						p.Spend()
					}
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
				permits += n
				if n, err = hammer(clients, slice, func() error { return rdb.Ping(ctx).Err() }); err != nil {
					b.Fatal(err)
				}
				pings += n
				rounds++
			}
			stop()
			if err := <-done; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(permits/rounds, "permits/s")
			b.ReportMetric(pings/rounds, "pings/s")
			b.ReportMetric(permits/pings, "×PING")
			b.ReportMetric(0, "ns/op")
		})
	}
}
