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

// DeleteExpired deletes snapshots of a facet that were fetched before a time, and
// absences looked at before another. When a snapshot was fetched can't be indexed, since each
// check writes it; so each call looks at the next most snapshots in the order of their
// keys, wherever the last call of any process stopped, and done says that it came to the
// end: the next begins anew. A whole walk costs one look at each snapshot, about what one
// check of each costs, spread as the caller likes. While another walks there, nothing is
// done.
//
// A status remains, for DeleteOldStatuses. Dead letters are the topic's, which has its own
// retention.
func (s *Store) DeleteExpired(ctx context.Context, source, facet string, content, absence time.Time, most int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, most, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectExpired, source, facet, after, content.UnixMicro(), absence.UnixMicro(), most)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		// The state first, as a Write does: two in the other order wait in a circle.
		b.Queue(store.DeleteExpiredState, source, facet, key, content.UnixMicro(), absence.UnixMicro()).Exec(count)
		b.Queue(store.DeleteOrphan, source, facet, key)
	})
}

// DeleteOldStatuses deletes the statuses of a facet's entities of which nothing is stored and
// that failed last before a time, in the same way: most are looked at in one call.
func (s *Store) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, most int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+store.StatusWalkSuffix, most, func(tx pgx.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectOldStatuses, source, facet, after, before.UnixMicro(), most)
	}, func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error) {
		b.Queue(store.DeleteOldStatus, source, facet, key, before.UnixMicro()).Exec(count)
	})
}

// walk takes one step along the keys of a facet, from where the last one of this name
// stopped.
func (s *Store) walk(ctx context.Context, source, facet, name string, most int,
	look func(tx pgx.Tx, after string) (looked int, last string, keys []string, err error),
	end func(b *pgx.Batch, key string, count func(pgconn.CommandTag) error),
) (deleted int, done bool, err error) {
	// A transaction of its own: a row that another has inserted and not committed can't be
	// passed over.
	if _, err := s.pool.Exec(ctx, store.InsertRetentionWalk, source, name); err != nil {
		return 0, false, fmt.Errorf("delete what is kept too long of %s/%s: %w", source, facet, classifyError(err))
	}
	err = pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		var after string
		if err := tx.QueryRow(ctx, lockRetentionWalk, source, name).Scan(&after); err != nil {
			return err
		}
		looked, last, keys, err := look(tx, after)
		if err != nil {
			return err
		}
		if done = looked < most; done {
			last = ""
		}
		var b pgx.Batch
		for _, key := range keys {
			end(&b, key, func(tag pgconn.CommandTag) error {
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
		return 0, false, fmt.Errorf("delete what is kept too long of %s/%s: %w", source, facet, classifyError(err))
	}
	return deleted, done, nil
}

// selectExpiredKeys looks at the next rows behind a key, and returns how many it looked at, the last
// one's key, and the keys of the rows that are kept too long.
func selectExpiredKeys(ctx context.Context, tx pgx.Tx, query string, args ...any) (looked int, last string, keys []string, err error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return 0, "", nil, err
	}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&looked, &last, &key}, func() error {
		if key != "" {
			keys = append(keys, key)
		}
		return nil
	})
	return looked, last, keys, err
}
