package consumer_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
	"github.com/freshet/freshet/store"
)

// BenchmarkWorkerAlias compares two kinds of refreshes of unchanged entities: with a param whose value
// comes from a stored, fresh alias, and without an alias. Periods with and without an alias alternate.
// Both use the same services and read the same documents.
func BenchmarkWorkerAlias(b *testing.B) {
	through, pg := throughReal(b)
	plain, alias := plainRun(observe.Tracer{}), plainRun(observe.Tracer{})
	id, f := source.DefaultFacet(), source.DefaultFacet()
	id.FreshFor = 24 * time.Hour
	id.Documents = map[string]source.Document{"id": {Path: "/id?name={key}"}}
	f.Documents = map[string]source.Document{"d": {Path: "/?id={id}"}}
	f.Params = map[string]source.Param{"id": {From: "id", Path: "id.value"}}
	alias.facets = map[string]source.Facet{"id": id, "f": f}
	var writes []store.Write
	for i := range benchEvents {
		text := fmt.Appendf(nil, `{"id":{"value":%q}}`, alias.key(i))
		writes = append(writes, store.Write{
			Entity: schemas.Entity{Source: alias.source, Facet: "id", Key: alias.key(i)}, Version: 1, CheckedAt: time.Now(),
			Hash: sha256.Sum256(text), Payload: func() (store.Payload, error) { return store.Encode(text), nil },
			AliasUsers: []string{"f"},
		})
	}
	for batch := range slices.Chunk(writes, 500) {
		if _, err := pg.Write(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	runs := []struct {
		benchRun
		took, cpu time.Duration
		rounds    []time.Duration
	}{{benchRun: plain}, {benchRun: alias}}
	for i := range runs {
		through(runs[i].benchRun) // this first run stores the entities, so that the measured runs only refresh them
	}
	for n := 0; b.Loop(); n++ {
		for i := range runs {
			r := &runs[(i+n)%2]
			before := cpuTime(b)
			took := through(r.benchRun)
			r.took, r.cpu, r.rounds = r.took+took, r.cpu+cpuTime(b)-before, append(r.rounds, took)
		}
	}
	var ratios []float64
	for i, took := range runs[1].rounds {
		ratios = append(ratios, runs[0].rounds[i].Seconds()/took.Seconds())
	}
	slices.Sort(ratios)
	for i, name := range []string{"plain", "alias"} {
		b.ReportMetric(float64(benchEvents*b.N)/runs[i].took.Seconds(), "events/s-"+name)
		b.ReportMetric(float64(runs[i].cpu.Microseconds())/float64(benchEvents*b.N), "µs-cpu/event-"+name)
	}
	b.ReportMetric(runs[0].took.Seconds()/runs[1].took.Seconds(), "×plain")
	b.ReportMetric(ratios[len(ratios)/2], "×plain-median")
	b.ReportMetric(0, "ns/op")
}
