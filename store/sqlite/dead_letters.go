package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// SaveJobProgress writes the job's progress, the outcomes of the handled dead letters and, if the
// job is done, the audit entry, in one transaction. It returns the job's stored state, which an
// operator may have changed. If another process holds the lease, it returns store.ErrConflict.
func (s *Store) SaveJobProgress(ctx context.Context, job store.DLQJob, handled []store.DeadLetterID, d store.Disposition, entry *store.AuditEntry) (state store.JobState, err error) {
	args, err := job.ProgressArgs()
	if err != nil {
		return "", err
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, store.UpdateJobProgress, args...).Scan(&state)
		if errors.Is(err, sql.ErrNoRows) {
			return store.ErrConflict
		}
		for _, id := range store.SortDeadLetterIDs(handled) {
			if err == nil {
				_, err = tx.ExecContext(ctx, store.UpdateDisposition, id.DispositionArgs(d)...)
			}
		}
		if err == nil && entry != nil && state == store.JobDone {
			_, err = tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("save the progress of dlq job %s: %w", job.ID, err)
	}
	return state, nil
}

// SetJobState changes the state of a job from `before` to `after` and writes the audit entry in one
// transaction. It returns store.ErrJobNotFound if the job is not in the state `before`. It returns the
// same error if a replay is resumed while another replay of its source is running or has a chunk in
// flight.
func (s *Store) SetJobState(ctx context.Context, id string, before, after store.JobState, at time.Time, entry store.AuditEntry) error {
	err := runner{s.transactions}.ExecAudited(ctx, entry, store.ErrJobNotFound, store.UpdateJobState, id, string(before), string(after), at.UnixMicro())
	if err != nil {
		return fmt.Errorf("set the state of dlq job %s: %w", id, err)
	}
	return nil
}
