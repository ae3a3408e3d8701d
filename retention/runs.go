package retention

import (
	"context"

	"github.com/freshet/freshet/store"
)

// Statements of deleteRuns, for both databases.
const (
	// SelectOldRuns returns the runs that ended first. Arguments: time before which they have ended, limit.
	SelectOldRuns = `SELECT id FROM runs WHERE state <> 'RUNNING' AND ended_at < $1 ORDER BY ended_at LIMIT $2`
	// LockOldRun locks a run. It writes no row if the run was retried meanwhile. Arguments: id, time before which it has ended.
	LockOldRun = `UPDATE runs SET total = total WHERE id = $1 AND state <> 'RUNNING' AND ended_at < $2`
	// DeleteSteps deletes steps of a run and returns their states. Arguments: id of the run, limit.
	DeleteSteps = `DELETE FROM run_steps WHERE run = $1 AND no IN (SELECT no FROM run_steps WHERE run = $1 ORDER BY no LIMIT $2) RETURNING state`
	// ReduceCounts subtracts deleted steps from the counters of their run. Arguments: id, all, done, not found, failed, cancelled.
	ReduceCounts = `UPDATE runs SET total = total - $2, done = done - $3, not_found = not_found - $4, failed = failed - $5, cancelled = cancelled - $6 WHERE id = $1`
	// DeleteRun deletes a run. Argument: id.
	DeleteRun = `DELETE FROM runs WHERE id = $1`
)

// deleteRuns deletes the runs that ended first, each after its steps. A run can have more steps than one transaction
// deletes. Then its counters are reduced, so that they match the steps that are left.
func deleteRuns(ctx context.Context, tx store.Tx, before int64, limit int) (deleted int, err error) {
	var ids []string
	err = tx.Query(ctx, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, SelectOldRuns, before, limit)
	for _, id := range ids {
		if err != nil || deleted == limit {
			break
		}
		var n int
		n, err = deleteRun(ctx, tx, id, before, limit-deleted)
		deleted += n
	}
	return deleted, err
}

// deleteRun deletes steps of a run and, if fewer than limit are left, the run. It returns the number of deleted rows.
func deleteRun(ctx context.Context, tx store.Tx, id string, before int64, limit int) (deleted int, err error) {
	locked, err := tx.Exec(ctx, store.Statement{Text: LockOldRun, Args: []any{id, before}})
	if err != nil || locked[0] == 0 {
		return 0, err
	}
	states := map[string]int{}
	err = tx.Query(ctx, func(scan func(...any) error) error {
		var state string
		err := scan(&state)
		states[state]++
		deleted++
		return err
	}, DeleteSteps, id, limit)
	if err != nil {
		return 0, err
	}
	rest := store.Statement{Text: DeleteRun, Args: []any{id}}
	if deleted == limit {
		rest = store.Statement{Text: ReduceCounts, Args: []any{id, deleted, states["DONE"], states["NOT_FOUND"], states["FAILED"], states["CANCELLED"]}}
	} else {
		deleted++
	}
	_, err = tx.Exec(ctx, rest)
	return deleted, err
}
