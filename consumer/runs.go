package consumer

import (
	"context"
	"time"

	"github.com/freshet/freshet/runs"
)

// Runs reads and changes the steps of runs.
type Runs interface {
	// IsOpen reports whether a step is open.
	IsOpen(ctx context.Context, step runs.Ref) (bool, error)
	// Answered makes steps due, because the records of their requests are finished.
	Answered(ctx context.Context, steps []runs.Ref, now time.Time) error
}

// step returns the step of a run whose next page the task's request fetches. `ok` is false if the
// request belongs to no run.
func (t *task) step() (step runs.Ref, ok bool) {
	return runs.Ref{Run: t.request.RunID, Entity: t.request.Entity}, t.request.RunID != ""
}

// stepOpen reports whether the page of a task may be fetched. It may if its request belongs to no run,
// or to an open step. It fails only if ctx ends.
func (x *walks) stepOpen(ctx context.Context, t *task) (open bool, err error) {
	step, ok := t.step()
	if !ok {
		return true, nil
	}
	err = x.w.db.retry(ctx, opRuns, func(ctx context.Context) (err error) {
		open, err = x.runs.IsOpen(ctx, step)
		return err
	})
	return open, err
}

// answered makes the steps of finished requests due. It tries only once: if the database fails, a
// poller of runs examines the steps after their leases.
func (x *walks) answered(ctx context.Context, steps []runs.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, dependencyTimeout)
	defer cancel()
	return x.runs.Answered(ctx, steps, time.Now())
}
