package storetest

import (
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

func testRun(b suite) {
	ctx := b.Context()
	worker := runs.Store(b.store)
	if roles, ok := b.store.(WorkerStore); ok {
		worker = roles.WorkerTx()
	}
	c := source.DefaultConfig()
	c.BaseURL = "http://127.0.0.1:1"
	f := source.DefaultFacet()
	f.Documents = map[string]source.Document{"d": {Path: "/{key}"}}
	c.Facets = map[string]source.Facet{"user": f}
	s, err := source.New("s", c, nil, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	now := time.Unix(1_800_000_000, 0).UTC()
	query, work := runs.New(b.store), runs.New(worker)
	order := runs.Order{
		Source: s, Name: "all", Config: runs.Config{Steps: map[string]runs.StepConfig{"user": {}}, Parallel: 1, Deadline: time.Hour},
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
