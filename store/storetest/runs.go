package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/runs"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/source"
)

// runRuns runs the tests of runs that need the database roles of the query service and of a worker. All
// other tests of runs are in package runs.
func runRuns(t *testing.T, open func(t *testing.T) Store) {
	t.Run("runs: started by the query service, ended by a worker", func(t *testing.T) { testRun(suite{t, open(t)}) })
}

// runSource returns a source with the facet user.
func (b suite) runSource() *source.Source {
	b.Helper()
	c := source.DefaultConfig()
	c.BaseURL = "http://127.0.0.1:1"
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	c.Facets = map[string]source.Facet{"user": f}
	s, err := source.New("s", c, nil, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	return s
}

// runWorker returns the runs of a worker.
func (b suite) runWorker() *runs.Runs {
	if roles, ok := b.store.(WorkerStore); ok {
		return runs.New(roles.WorkerTx())
	}
	return runs.New(b.store)
}

func testRun(b suite) {
	ctx, now := b.Context(), time.Unix(1_800_000_000, 0).UTC()
	query, work := runs.New(b.store), b.runWorker()
	order := runs.Order{
		Source: b.runSource(), Name: "all", Config: runs.Config{Steps: map[string]runs.StepConfig{"user": {}}, Parallel: 1, Deadline: time.Hour},
		Keys: runs.Keys{List: []string{"b", "a"}}, TriggeredBy: "key:a", IdempotencyKey: "k",
	}
	run, started, err := query.Start(ctx, order, now)
	if err != nil || !started {
		b.Fatalf("start: got %t, %v, want a new run", started, err)
	}
	ref := runs.Ref{Run: run.ID, Entity: schemas.Entity{Source: "s", Facet: "user", Key: "a"}}
	if open, err := work.IsOpen(ctx, ref); err != nil || !open {
		b.Errorf("step of a: got open %t, %v, want true", open, err)
	}
	if err := work.Answered(ctx, []runs.Ref{ref}, now); err != nil {
		b.Error(err)
	}
	if _, err := work.End(ctx, run.ID, []runs.StepEnd{{Number: 1, State: runs.StepDone}, {Number: 2, State: runs.StepFailed, Error: "x"}}, now); err != nil {
		b.Fatal(err)
	}
	if run, err = query.Retry(ctx, run.ID, now); err != nil || run.Attempt != 2 {
		b.Fatalf("retry: got attempt %d, %v, want 2", run.Attempt, err)
	}
	if run, err = query.Cancel(ctx, run.ID, now); err != nil || run.State != runs.Cancelled {
		b.Fatalf("cancel: got %s, %v, want %s", run.State, err, runs.Cancelled)
	}
	if faults, err := query.Verify(ctx, run.ID); err != nil || len(faults) > 0 {
		b.Errorf("verify: got %q, %v, want no fault", faults, err)
	}
	steps, err := query.Steps(ctx, run.ID, "", 0, 10)
	states := make([]runs.StepState, len(steps))
	for i, step := range steps {
		states[i] = step.State
	}
	if want := []runs.StepState{runs.StepDone, runs.StepCancelled}; err != nil || !slices.Equal(states, want) {
		b.Errorf("steps: got %q, %v, want %q", states, err, want)
	}
	if all, err := query.List(ctx, runs.Filter{Source: "s", Limit: 10}); err != nil || len(all) != 1 {
		b.Errorf("list: got %d runs, %v, want 1", len(all), err)
	}
}

// testOldRuns deletes ended runs in batches that are smaller than a run. The counters of a run always match its steps,
// so a run that is partly deleted can be retried.
func testOldRuns(b suite) {
	ctx, query, work, table := b.Context(), runs.New(b.store), b.runWorker(), tableOf(b, "runs")
	s := b.runSource()
	start := func(user string, now time.Time) runs.Run {
		b.Helper()
		run, _, err := query.Start(ctx, runs.Order{
			Source: s, Name: "all", Config: runs.Config{Steps: map[string]runs.StepConfig{"user": {}}, Parallel: 1, Deadline: time.Hour},
			Keys: runs.Keys{List: []string{user + "1", user + "2", user + "3", user + "4"}}, TriggeredBy: "key:a",
		}, now)
		if err != nil {
			b.Fatal(err)
		}
		return run
	}
	end := func(run runs.Run, now time.Time) {
		b.Helper()
		ends := []runs.StepEnd{{Number: 1, State: runs.StepDone}, {Number: 2, State: runs.StepNotFound}, {Number: 3, State: runs.StepFailed}, {Number: 4, State: runs.StepFailed}}
		if _, err := work.End(ctx, run.ID, ends, now); err != nil {
			b.Fatal(err)
		}
	}
	old, retried, young, active := start("o", at(1)), start("r", at(2)), start("y", at(3)), start("a", at(1))
	end(old, at(10))
	end(retried, at(20))
	end(young, at(50))
	for i, want := range []int{3, 3, 3} { // 4 steps and the run, and 4 steps of the next run
		if got := b.deleteOld(table, at(50), 3); got != want {
			b.Errorf("batch %d: got %d rows deleted, want %d", i, got, want)
		}
		for _, run := range []runs.Run{old, retried, young, active} {
			if faults, err := query.Verify(ctx, run.ID); len(faults) > 0 || err != nil && !errors.Is(err, runs.ErrNotFound) {
				b.Errorf("batch %d: verify: got %q, %v, want no fault", i, faults, err)
			}
		}
	}
	if _, err := query.Get(ctx, old.ID); !errors.Is(err, runs.ErrNotFound) {
		b.Errorf("old run: got %v, want %v", err, runs.ErrNotFound)
	}
	if _, err := query.Retry(ctx, retried.ID, at(60)); !errors.Is(err, runs.ErrNoFailedStep) {
		b.Errorf("retry of a run without steps: got %v, want %v", err, runs.ErrNoFailedStep)
	}
	if got := b.deleteOld(table, at(50), 3); got != 1 {
		b.Errorf("last batch: got %d rows deleted, want the run", got)
	}
	for _, run := range []runs.Run{young, active} {
		if steps, err := query.Steps(ctx, run.ID, "", 0, 10); err != nil || len(steps) != 4 {
			b.Errorf("steps of a kept run: got %d, %v, want 4", len(steps), err)
		}
	}
}
