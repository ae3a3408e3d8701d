package producer

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

// BenchmarkSettle settles batches as large as a worker writes them.
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
	c := NewCoalescing(rdb)
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
