package consumer_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/collection"
	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/servicetest"
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
	items := strings.Repeat(fmt.Sprintf(`{"id":%q,"value":"%08x"},`, key, sha256.Sum256([]byte(key))), 16)
	var list []string
	for n := range 10 {
		list = append(list, fmt.Sprintf(`{"id":"%s-%d","items":[%s1]}`, key, n, items))
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
// 17 KB. The two kinds are measured in turn, several times. It also compares the CPU time, which
// depends less on the load of the machine. The CPU time of the worker includes the fake broker and the
// fake upstream, which run in the same process.
func BenchmarkWorkerPages(b *testing.B) {
	through, _ := throughReal(b)
	backends := backendTime(b)
	type use struct{ wall, worker, database time.Duration }
	measure := func(sum *use, run benchRun) {
		worker, database := cpuTime(b), backends()
		sum.wall += through(run)
		sum.worker += cpuTime(b) - worker
		sum.database += backends() - database
	}
	var plain, pages, again use
	for b.Loop() {
		measure(&plain, plainRun(observe.Tracer{}))
		run := pageRun()
		measure(&pages, run)
		measure(&again, run) // the second pass: all items are stored already
	}
	for unit, u := range map[string]use{"event": plain, "page": pages, "unchanged-page": again} {
		perEvent := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(benchEvents*b.N) }
		b.ReportMetric(1e6/perEvent(u.wall), unit+"s/s")
		b.ReportMetric(perEvent(u.worker), "worker-µs/"+unit)
		b.ReportMetric(perEvent(u.database), "postgres-µs/"+unit)
	}
	b.ReportMetric(plain.wall.Seconds()/pages.wall.Seconds(), "×plain")
	b.ReportMetric(plain.wall.Seconds()/again.wall.Seconds(), "×plain-unchanged")
	cpu := func(u use) float64 { return (u.worker + u.database).Seconds() }
	b.ReportMetric(cpu(plain)/cpu(pages), "×plain-cpu")
	b.ReportMetric(cpu(plain)/cpu(again), "×plain-unchanged-cpu")
	b.ReportMetric(0, "ns/op")
}

// backendTime returns a function that returns the CPU time of PostgreSQL's processes of all clients.
// It returns 0 if PostgreSQL runs on another machine.
func backendTime(b *testing.B) func() time.Duration {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), servicetest.Postgres(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func() (sum time.Duration) {
		rows, _ := conn.Query(b.Context(), "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			b.Fatal(err)
		}
		for _, pid := range pids {
			var ns int64
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
			_, _ = fmt.Sscan(string(text), &ns)
			sum += time.Duration(ns)
		}
		return sum
	}
}
