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

const lockRetentionWalk = store.SelectRetentionWalk + ` FOR UPDATE SKIP LOCKED`

// DeleteExpired deletes snapshots of a facet that were fetched before content, and absences that
// were checked before absence. The times can't be indexed, because every check writes them. Each
// call therefore examines the next limit snapshots in the order of their keys, from where the last
// call of any process stopped. done is set at the end of the facet; the next call starts again. A
// whole walk costs about as much as one check of every snapshot. If another process is walking, the
// call does nothing.
//
// Statuses are kept; see DeleteOldStatuses. Dead letters are kept for the retention time of their
// topic.
func (s *Store) DeleteExpired(ctx context.Context, source, facet string, content, absence time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, limit, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectExpired, source, facet, after, content.UnixMicro(), absence.UnixMicro(), limit)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		// The state first, as in Write, which prevents deadlocks.
		b.Queue(store.DeleteExpiredState, source, facet, key, content.UnixMicro(), absence.UnixMicro()).Exec(count)
		b.Queue(store.DeleteOrphan, source, facet, key)
	})
}

// DeleteOldStatuses deletes statuses of entities without a snapshot that failed last before a time.
// It walks like DeleteExpired, limit rows per call.
func (s *Store) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+store.StatusWalkSuffix, limit, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectOldStatuses, source, facet, after, before.UnixMicro(), limit)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		b.Queue(store.DeleteOldStatus, source, facet, key, before.UnixMicro()).Exec(count)
	})
}

// walk runs one step of the named walk along the keys of a facet.
func (s *Store) walk(ctx context.Context, source, facet, name string, limit int,
	selectKeys func(tx pgx.Tx, after string) (examined int, last string, keys []string, err error),
	deleteRow func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error),
) (deleted int, done bool, err error) {
	// A separate transaction, because SKIP LOCKED does not skip a row that another transaction has
	// inserted and not committed.
	if _, err := s.pool.Exec(ctx, store.InsertRetentionWalk, source, name); err != nil {
		return 0, false, fmt.Errorf("delete expired rows of %s/%s: %w", source, facet, classifyError(err))
	}
	err = pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		var after string
		if err := tx.QueryRow(ctx, lockRetentionWalk, source, name).Scan(&after); err != nil {
			return err
		}
		examined, last, keys, err := selectKeys(tx, after)
		if err != nil {
			return err
		}
		if done = examined < limit; done {
			last = ""
		}
		var b pgx.Batch
		for _, key := range keys {
			deleteRow(&b, key, func(tag pgconn.CommandTag) error {
				deleted += int(tag.RowsAffected())
				return nil
			})
		}
		b.Queue(store.UpdateRetentionWalk, source, name, last)
		return tx.SendBatch(ctx, &b).Close()
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("delete expired rows of %s/%s: %w", source, facet, classifyError(err))
	}
	return deleted, done, nil
}

// selectExpiredKeys examines the next rows behind a key. It returns the number of examined rows,
// the last key, and the keys of expired rows.
func selectExpiredKeys(ctx context.Context, tx pgx.Tx, query string, args ...any) (examined int, last string, keys []string, err error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return 0, "", nil, err
	}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&examined, &last, &key}, func() error {
		if key != "" {
			keys = append(keys, key)
		}
		return nil
	})
	return examined, last, keys, err
}
