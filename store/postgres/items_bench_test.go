package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status/find"
	"github.com/freshet/freshet/store"
)

// BenchmarkItems measures one page of the console's list of items from the middle of a table, for
// each filter. The slowest page is one whose filter matches nothing: it examines 1,000 rows.
func BenchmarkItems(b *testing.B) {
	for _, n := range entityCounts() {
		s := open(b)
		fillEntities(b, s, n)
		r := find.ItemReader{Walker: s, Lookup: s, Now: time.Now, Lifetimes: func(string, string) store.Lifetimes { return store.Lifetimes{FreshFor: time.Hour} }}
		for _, filter := range find.ItemFilters {
			b.Run(fmt.Sprintf("%d/%s", n, filter), func(b *testing.B) {
				var took []time.Duration
				for i := 0; b.Loop(); i++ {
					after := fmt.Sprintf("key-%09d", (n/2+i*7919)%n)
					began := time.Now()
					if _, err := r.Find(b.Context(), find.ItemQuery{Source: "s", Facet: "f", Prefix: "key-", After: after, Filter: filter}, func(schemas.Entity, string) bool { return true }); err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
				b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-max")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
