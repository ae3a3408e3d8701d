//go:build unix

package limiter

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/source/announced"
)

// Two processes share a reported limit, a limit of calls in flight, and a leaky bucket. They must keep
// these limits on each kind of Redis: an embedded Redis, a real Redis and a real Redis Cluster.
func TestScopes_HoldOnRealRedis(t *testing.T) {
	servicetest.EachRedis(t, func(t *testing.T, rdb redis.UniversalClient) {
		const slots, budget = 3, 100
		config := scopedConfig(
			Policy{Name: "slots", Limit: slots, Window: InFlight},
			Policy{Name: "core", Limit: budget, Window: Window(time.Hour), Scope: "{credential}", Reported: true},
			Policy{Name: "points", Limit: 4000, Restore: 200, Scope: "{endpoint}"},
		)
		config.Lease = time.Second // a new source starts with a quiet period as long as the lease, so the lease is short
		config.Jitter = time.Second
		source := servicetest.Name("scoped")
		var mu sync.Mutex
		var flying, most atomic.Int64
		left, refused := int64(budget), 0
		ctx, stop := context.WithCancel(t.Context())
		var running, calling sync.WaitGroup
		for i := range 2 {
			deps := withoutLogs(Deps{Redis: rdb})
			deps.Process = fmt.Sprint(i)
			l, err := New(source, config, deps)
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { _ = l.Run(ctx) })
			for range 6 {
				calling.Go(func() {
					for range 8 { // 2 processes with 6 callers each make 96 calls in total
						call := Call{Endpoint: "f/d", Key: "k", Credentials: []string{"c"}}
						p, err := l.Acquire(ctx, schemas.Low, call)
						for err == nil && !p.Spend() {
							p, err = l.Reacquire(ctx, schemas.Low, call)
						}
						if err != nil {
							return
						}
						n := flying.Add(1)
						for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
						}
						mu.Lock()
						if left == 0 {
							refused++
						} else {
							left--
						}
						notice := reportOf("core", left, time.Hour, time.Second)
						mu.Unlock()
						sleep(5 * ms)
						flying.Add(-1)
						p.ReportEnd(200, []announced.Notice{notice}, refusedIf(200))
					}
				})
			}
		}
		ended := make(chan struct{})
		go func() { calling.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(60 * time.Second):
			t.Error("some calls were not made within a minute")
		}
		stop()
		calling.Wait()
		running.Wait()
		if refused > 0 || left != budget-96 || most.Load() > slots {
			t.Errorf("%d left, %d refused, %d at once", left, refused, most.Load())
		}
	})
}

var usedPerCall = regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([0-9.]+)`)

// BenchmarkScopes measures the time that Redis needs for a call of the script, for several numbers
// of queues with four buckets each and of calls in flight, and for one queue with eight buckets.
func BenchmarkScopes(b *testing.B) {
	four := []Policy{
		{Name: "slots", Limit: 100000, Window: InFlight},
		{Name: "log", Limit: 20, Window: Window(time.Second), Scope: "{endpoint}"},
		{Name: "bucket", Limit: 100000, Restore: 100000, Unit: "points"},
		{Name: "reported", Limit: 1e6, Window: Window(time.Hour), Scope: "{credential}", Reported: true},
	}
	for _, at := range []struct {
		policies         []Policy
		queues, inFlight int
	}{{four, 1, 0}, {four, 8, 0}, {four, 8, 2000}, {four, 48, 0}, {eightBuckets(), 1, 0}} {
		b.Run(fmt.Sprintf("%d buckets, %d queues, %d in flight", len(at.policies), at.queues, at.inFlight), func(b *testing.B) {
			rdb := servicetest.PrivateRedis(b).Client
			c := newBucketCalls(b, rdb, "bench", at.policies, at.queues)
			slots := c.demand.queues[0].q.key.candidates[0].costs[0].bucket // the first policy limits the calls in flight
			for i := range at.inFlight {
				rdb.ZAdd(b.Context(), slots.key+":calls", redis.Z{Score: 9e15, Member: fmt.Sprintf("x.%d:1", i)})
			}
			if err := c.call(b.Context()); err != nil {
				b.Fatal(err)
			}
			rdb.ConfigResetStat(b.Context())
			for b.Loop() {
				if err := c.call(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			m := usedPerCall.FindStringSubmatch(rdb.Info(b.Context(), "commandstats").Val())
			us, _ := strconv.ParseFloat(m[1], 64)
			b.ReportMetric(us, "us/call")
		})
	}
}
