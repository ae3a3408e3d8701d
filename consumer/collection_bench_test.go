package consumer_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/source/items"
)

// countingPages is a store of collections that counts the written pages as if they were rows.
type countingPages struct {
	*collection.Collections
	count *countingStore
}

func (c countingPages) Write(ctx context.Context, pages []collection.Write) ([]collection.Written, error) {
	written, err := c.Collections.Write(ctx, pages)
	c.count.rows.Add(int64(len(written)))
	return written, err
}

// listDocument returns a list of ten items with 17 KB in total. The function document returns one
// object of the same size.
func listDocument(key string) string {
	var list []string
	for n := range 10 {
		list = append(list, fmt.Sprintf(`{"id":"%s-%d","items":[%s1]}`, key, n, strings.Repeat(fmt.Sprintf(`{"id":%q,"value":"%08x"},`, key, sha256.Sum256([]byte(key))), 16)))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// pageRun returns a benchmark of new collections with one page each.
func pageRun() benchRun {
	r := plainRun(observe.Tracer{})
	f := r.facets["f"]
	f.Documents = map[string]source.Document{"d": {Path: "/list?id={key}"}}
	f.Collection = &items.Collection{ID: "id"}
	r.facets["f"] = f
	return r
}

// BenchmarkWorkerPages compares two rates: how many new collections of one page with ten items a
// worker stores in a second, and how many entities of a facet that is no collection. Both kinds have
// 17 KB. The two kinds are measured in turn, several times.
func BenchmarkWorkerPages(b *testing.B) {
	through, _ := throughReal(b)
	var plain, pages, again time.Duration
	for b.Loop() {
		plain += through(plainRun(observe.Tracer{}))
		run := pageRun()
		pages += through(run)
		again += through(run) // the second pass: all items are stored already
	}
	perSecond := func(d time.Duration) float64 { return float64(benchEvents*b.N) / d.Seconds() }
	b.ReportMetric(perSecond(plain), "events/s")
	b.ReportMetric(perSecond(pages), "pages/s")
	b.ReportMetric(perSecond(again), "unchanged-pages/s")
	b.ReportMetric(plain.Seconds()/pages.Seconds(), "×plain")
	b.ReportMetric(plain.Seconds()/again.Seconds(), "×plain-unchanged")
	b.ReportMetric(0, "ns/op")
}
