package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

const lockRetentionWalk = shared.SelectRetentionWalk + ` FOR UPDATE SKIP LOCKED`

// DeleteExpired deletes snapshots of a facet whose content was fetched before the time `content`, and
// not-found results that were checked before the time `notFound`.
//
// These times have no index, because every check would have to update the index. Each call examines a
// number of snapshots (`limit`) in the order of their keys. It continues after the last key that an
// earlier call of any process examined. At the end of the facet `done` is true, and the next call
// starts again at the first key. If another process is in a call for the same facet, the call does
// nothing.
//
// Statuses are kept; see DeleteOldStatuses. Dead letters are kept for the retention time of their
// topic.
func (s retentionStore) DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, limit, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, shared.SelectExpired, source, facet, after, content.UnixMicro(), notFound.UnixMicro(), limit)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		// The state is deleted first, in the same order as in Write, which prevents deadlocks.
		b.Queue(shared.DeleteExpiredState, source, facet, key, content.UnixMicro(), notFound.UnixMicro()).Exec(count)
		for _, statement := range store.DeleteOrphans {
			b.Queue(statement, source, facet, key)
		}
	})
}

// DeleteOldStatuses deletes statuses of entities without a snapshot if their last failure was
// before a time. Like DeleteExpired, each call examines the next `limit` rows.
func (s retentionStore) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+shared.StatusWalkSuffix, limit, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, shared.SelectOldStatuses, source, facet, after, before.UnixMicro(), limit)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		b.Queue(shared.DeleteOldStatus, source, facet, key, before.UnixMicro()).Exec(count)
	})
}

// walk examines the next `limit` keys of a facet and deletes the expired rows. It stores the key
// after which the next call continues, in the row of retention_walks with the given name.
func (s retentionStore) walk(ctx context.Context, source, facet, name string, limit int,
	selectKeys func(tx pgx.Tx, after string) (examined int, last string, keys []string, err error),
	deleteRow func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error),
) (deleted int, done bool, err error) {
	// This statement inserts the facet's row before the transaction below begins, so the row is
	// committed at once. If the transaction inserted the row, a concurrent call's INSERT would wait
	// until the transaction ends, which SKIP LOCKED can't prevent.
	if _, err := s.pool.Exec(ctx, shared.InsertRetentionWalk, source, name); err != nil {
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
		b.Queue(shared.UpdateRetentionWalk, source, name, last)
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

// selectExpiredKeys runs a query that examines the next rows of a facet. It returns the number of
// examined rows, the last examined key, and the keys of expired rows.
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
