package producer

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// BenchmarkSettle measures Settle with batches of the size that workers write.
func BenchmarkSettle(b *testing.B) {
	b.Run("redis", func(b *testing.B) { benchmarkSettle(b, []string{servicetest.RedisAddress(b)}) })
	b.Run("cluster", func(b *testing.B) { benchmarkSettle(b, servicetest.RedisClusterAddresses(b)) })
}

func benchmarkSettle(b *testing.B, addresses []string) {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses, IsClusterMode: len(addresses) > 1, MaxRetries: -1})
	b.Cleanup(func() { _ = rdb.Close() })
	ends := make([]schemas.End, 128)
	source := servicetest.Name("nexon")
	for i := range ends {
		ends[i] = schemas.End{Entity: schemas.Entity{Source: source, Facet: "character", Key: fmt.Sprint(i)}, Satisfied: true}
	}
	c := NewCoalescer(rdb)
	for number := int64(1); b.Loop(); number++ {
		for i := range ends {
			ends[i].Number = number
		}
		if err := c.Settle(b.Context(), ends); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(ends)), "us/settle")
}

// BenchmarkEnqueue measures three requests: one that is published without a client, one that is
// published for a client, and one that another request covers. The difference between the first two
// requests is the cost of the limits per client. Kafka is in memory, and Enqueue does not wait for
// it.
func BenchmarkEnqueue(b *testing.B) {
	b.Run("redis", func(b *testing.B) { benchmarkRequest(b, []string{servicetest.RedisAddress(b)}) })
	b.Run("cluster", func(b *testing.B) { benchmarkRequest(b, servicetest.RedisClusterAddresses(b)) })
}

func benchmarkRequest(b *testing.B, addresses []string) {
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses, IsClusterMode: len(addresses) > 1, MaxRetries: -1})
	b.Cleanup(func() { _ = rdb.Close() })
	source := servicetest.Name("nexon")
	c := NewCoalescer(rdb)
	newRequest := func(n int) Request {
		return Request{Entity: schemas.Entity{Source: source, Facet: "character", Key: fmt.Sprint(n)}, Lane: schemas.High, Reason: schemas.CacheMiss, New: true}
	}
	bounded := func(n int) Request {
		req := newRequest(n)
		req.Client = schemas.ClientID("a")
		req.Bound = Bound{Outstanding: 1 << 30, Window: time.Second, Lease: time.Second, NewKeys: 1 << 20, NewKeyInterval: time.Microsecond}
		return req
	}
	n := 0
	request := func(b *testing.B, want Outcome, batch int, newRequest func(int) Request) {
		b.ReportAllocs()
		for b.Loop() {
			requests := make([]Request, batch)
			for i := range requests {
				requests[i] = newRequest(n)
				n++
			}
			results := c.acquire(b.Context(), requests)
			c.admit(b.Context(), requests, results)
			if results[0].Outcome != want || results[0].Err != nil {
				b.Fatalf("got %+v, want %s", results[0], want)
			}
		}
	}
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("publishes-internal-%d", batch), func(b *testing.B) { request(b, Published, batch, newRequest) })
		b.Run(fmt.Sprintf("publishes-client-%d", batch), func(b *testing.B) { request(b, Published, batch, bounded) })
		b.Run(fmt.Sprintf("covered-%d", batch), func(b *testing.B) {
			request(b, Pending, batch, func(int) Request { return bounded(0) })
		})
	}
}
