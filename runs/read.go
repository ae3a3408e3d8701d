package runs

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/store"
)

// Get returns the run with this id. The error wraps ErrNotFound if there is none.
func (r *Runs) Get(ctx context.Context, id string) (run Run, err error) {
	found := false
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		run, found, err = read(ctx, tx, id)
		return err
	})
	if err == nil && !found {
		err = ErrNotFound
	}
	if err != nil {
		return Run{}, fmt.Errorf("read run %s: %w", id, err)
	}
	return run, nil
}

// Filter selects runs. An empty field selects all.
type Filter struct {
	Source, Name string
	State        State
	// Before is the id of a run: only runs that were created before it are returned.
	Before string
	Limit  int
}

const selectRuns = `SELECT ` + runColumns + ` FROM runs WHERE ($1 = '' OR source = $1) AND ($2 = '' OR name = $2) AND ($3 = '' OR state = $3)
AND ($4 = '' OR id < $4) ORDER BY id DESC LIMIT $5`

// List returns runs, the newest first.
func (r *Runs) List(ctx context.Context, f Filter) (all []Run, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		all = nil
		return tx.Query(ctx, func(scan func(...any) error) error {
			var run Run
			err := run.scan(scan)
			all = append(all, run)
			return err
		}, selectRuns, f.Source, f.Name, string(f.State), f.Before, f.Limit)
	})
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return all, nil
}

// Steps returns steps of a run in the order of their numbers, after the step with the given number. An empty state
// selects all.
func (r *Runs) Steps(ctx context.Context, id string, state StepState, after, limit int) (steps []Step, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		steps = nil
		return tx.Query(ctx, func(scan func(...any) error) error {
			var s Step
			err := s.scan(scan)
			steps = append(steps, s)
			return err
		}, selectSteps, id, after, string(state), limit)
	})
	if err != nil {
		return nil, fmt.Errorf("read the steps of run %s: %w", id, err)
	}
	return steps, nil
}

const (
	// holdRun locks the row of a run and changes nothing.
	holdRun    = `UPDATE runs SET updated_at = updated_at WHERE id = $1`
	countSteps = `SELECT state, count(*), COALESCE(sum(CASE WHEN due_at > 0 THEN 1 ELSE 0 END), 0) FROM run_steps WHERE run = $1 GROUP BY state`
	countFacet = `SELECT facet, state, count(*) FROM run_steps WHERE run = $1 GROUP BY facet, state ORDER BY facet, state`
)

// Progress returns the numbers of steps of a run by facet and state.
func (r *Runs) Progress(ctx context.Context, id string) (progress map[string]Counts, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		progress = map[string]Counts{}
		return tx.Query(ctx, func(scan func(...any) error) error {
			var facet string
			var state StepState
			var n int
			err := scan(&facet, &state, &n)
			c := progress[facet]
			c.add(state, n)
			c.Total += n
			progress[facet] = c
			return err
		}, countFacet, id)
	})
	if err != nil {
		return nil, fmt.Errorf("count the steps of run %s: %w", id, err)
	}
	return progress, nil
}

// Verify compares the counters of a run with its steps. It returns one sentence for each counter that
// does not match.
func (r *Runs) Verify(ctx context.Context, id string) (faults []string, err error) {
	err = r.store.InTx(ctx, func(tx store.Tx) error {
		faults = nil
		found, err := one(ctx, tx, holdRun, id) // lock the run, so that no step ends or starts between the next two reads
		if err == nil && !found {
			err = ErrNotFound
		}
		if err != nil {
			return err
		}
		run, _, err := read(ctx, tx, id)
		if err != nil {
			return err
		}
		var stored Counts
		started := 0
		err = tx.Query(ctx, func(scan func(...any) error) error {
			var state StepState
			var n, due int
			err := scan(&state, &n, &due)
			stored.add(state, n)
			stored.Total += n
			started += due
			return err
		}, countSteps, id)
		if stored != run.Counts {
			faults = append(faults, fmt.Sprintf("run %s has the counters %+v, and its steps give %+v", id, run.Counts, stored))
		}
		if started != run.started {
			faults = append(faults, fmt.Sprintf("run %s counts %d requested steps, and %d are requested", id, run.started, started))
		}
		if run.Ended() != (stored.Open == 0) {
			faults = append(faults, fmt.Sprintf("run %s has the state %s and %d open steps", id, run.State, stored.Open))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("verify run %s: %w", id, err)
	}
	return faults, nil
}
