package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
	err = classifyError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, store.UpdateJobProgress, args...).Scan(&state)
		if errors.Is(err, pgx.ErrNoRows) {
			return store.ErrConflict
		}
		if err != nil {
			return err
		}
		var b pgx.Batch
		for _, id := range store.SortDeadLetterIDs(handled) {
			b.Queue(store.UpdateDisposition, id.DispositionArgs(d)...)
		}
		if entry != nil && state == store.JobDone {
			b.Queue(store.InsertAudit, entry.AuditArgs()...)
		}
		return tx.SendBatch(ctx, &b).Close()
	}))
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
	err := runner{s.pool}.ExecAudited(ctx, entry, store.ErrJobNotFound, store.UpdateJobState, id, string(before), string(after), at.UnixMicro())
	// 23505 is a violation of a unique index: another replay of the source was resumed
	// concurrently.
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23505" {
		err = store.ErrJobNotFound
	}
	if err != nil {
		return fmt.Errorf("set the state of dlq job %s: %w", id, err)
	}
	return nil
}
