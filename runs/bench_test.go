package runs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

// BenchmarkEnd compares the time to end a step in a run of 100 steps and in a run of 100,000 steps. The
// rounds of the two runs alternate.
func BenchmarkEnd(b *testing.B) {
	db, _ := openPostgres(b)
	r := newRig(b, db)
	r.config.Steps = map[string]StepConfig{"user": {}}
	all := New(db)
	sizes := []int{100, 100_000}
	type measured struct {
		run  Run
		next int
		took []time.Duration
	}
	runs := make([]measured, len(sizes))
	round := 0
	start := func(i int) {
		round++
		run := Run{ID: fmt.Sprintf("%d-%d", i, round), Source: "github", Name: "profile", Scope: fmt.Sprint(i, round), Keys: sizes[i], Definition: r.config.Definition(), State: Running, Attempt: 1, Since: r.now, AttemptAt: r.now, Deadline: r.now.Add(time.Hour), CreatedAt: r.now, UpdatedAt: r.now}
		run.Counts.Total, run.Counts.Open, run.started, run.lastStarted = sizes[i], sizes[i], 8, 8
		var steps []Step
		for n := range sizes[i] {
			steps = append(steps, Step{Facet: "user", Key: strings.Repeat("k", 10) + fmt.Sprint(n), State: StepOpen})
		}
		err := db.InTx(b.Context(), func(tx store.Tx) error {
			args, err := run.insertArgs("", []byte{})
			if err == nil {
				_, err = one(b.Context(), tx, insertRun, args...)
			}
			if err == nil {
				err = insert(b.Context(), tx, run, 0, steps, r.now)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		runs[i].run, runs[i].next = run, 1
	}
	for i := range sizes {
		start(i)
	}
	if _, err := connect(b, db).Exec(b.Context(), "VACUUM ANALYZE"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for i := range sizes {
			m := &runs[i]
			if m.next == sizes[i] {
				start(i)
			}
			began := time.Now()
			if _, err := all.End(b.Context(), m.run.ID, []StepEnd{{Number: m.next, State: StepDone}}, r.now); err != nil {
				b.Fatal(err)
			}
			m.took = append(m.took, time.Since(began))
			m.next++
		}
	}
	median := make([]time.Duration, len(sizes))
	for i, m := range runs {
		slices.Sort(m.took)
		median[i] = m.took[len(m.took)/2]
		b.ReportMetric(float64(median[i].Microseconds()), fmt.Sprintf("µs-steps=%d", sizes[i]))
	}
	b.ReportMetric(float64(median[1])/float64(median[0]), "ratio")
}
