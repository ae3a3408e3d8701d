package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

const (
	insertEntity       = prefetched.InsertEntity + ` VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`
	registerEntity     = insertEntity + prefetched.OnConflictReplace
	countReads         = insertEntity + prefetched.OnConflictCountReads
	selectEntityExists = `SELECT EXISTS (SELECT 1 FROM entities WHERE source = $1 AND facet = $2 AND key = $3)`
)

// RegisterEntities registers entities in one transaction and returns how many were new. For a
// registered entity it replaces params, pinned and enabled, and the tier if the new row is pinned;
// history and due time are kept.
func (s prefetchedStore) RegisterEntities(ctx context.Context, all []prefetched.RegisteredEntity) (added int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, r := range prefetched.SortRegisteredEntities(all) {
			var known bool
			if err := tx.QueryRowContext(ctx, selectEntityExists, r.Entity.Source, r.Entity.Facet, r.Entity.Key).Scan(&known); err != nil {
				return err
			}
			if !known {
				added++
			}
			if err := insert(ctx, tx, registerEntity, r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("register %d entities: %w", len(all), err)
	}
	return added, nil
}

// ObserveReads adds reads to entities and registers unknown entities. An entity's due time does not
// change, and no index is written, unless refreshNow (which may be nil) returns true: then the
// entity is due at the time of the read. After an error some reads may have been counted.
func (s prefetchedStore) ObserveReads(ctx context.Context, reads []prefetched.EntityReads, refreshNow prefetched.RefreshNowFunc) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		sorted := prefetched.SortReads(reads)
		counted := prefetched.NewCountedReads(sorted, refreshNow)
		for _, r := range sorted {
			args, err := r.RegisteredEntity().InsertArgs()
			if err != nil {
				return err
			}
			if err := counted.ScanCounted(tx.QueryRowContext(ctx, countReads, args...).Scan); err != nil {
				return err
			}
		}
		return bringForward(ctx, tx, counted.DueNow)
	})
	if err != nil {
		return fmt.Errorf("count reads of %d entities: %w", len(reads), err)
	}
	return nil
}

func bringForward(ctx context.Context, tx *sql.Tx, all []prefetched.DueTime) error {
	for _, d := range all {
		e := d.Entity
		if _, err := tx.ExecContext(ctx, prefetched.BringForward, e.Source, e.Facet, e.Key, d.At.UnixMicro()); err != nil {
			return err
		}
	}
	return nil
}

func insert(ctx context.Context, tx *sql.Tx, statement string, r prefetched.RegisteredEntity) error {
	args, err := r.InsertArgs()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, statement, args...)
	return err
}

// EntityParams returns the registered params of the entities, in the given order. The params of an
// entity that is not registered are nil. A registered entity without params has an empty map.
func (s prefetchedStore) EntityParams(ctx context.Context, keys []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	for i, e := range keys {
		var text []byte
		err := s.db.QueryRowContext(ctx, `SELECT params FROM entities WHERE source = $1 AND facet = $2 AND key = $3`, e.Source, e.Facet, e.Key).Scan(&text)
		if err == nil {
			all[i], err = prefetched.ScanParams(text)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read the params of %s: %w", e, err)
		}
	}
	return all, nil
}

// CountEntities returns how many entities match the filter. The number is always exact.
func (s prefetchedStore) CountEntities(ctx context.Context, filter prefetched.Filter) (n int64, exact bool, err error) {
	from, args := filter.FromWhere()
	if err := s.db.QueryRowContext(ctx, "SELECT count(*)"+from, args...).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	return n, true, nil
}

// DeleteExpired deletes snapshots of a facet whose content was fetched before the time `content`, and
// not-found results that were checked before the time `notFound`. Each call examines the next `limit`
// snapshots in the order of their keys. It continues after the last key that the previous call
// examined. `done` is set when the facet's last snapshot has been examined; the next call starts again
// at the first key. Statuses and dead letters are kept.
func (s retentionStore) DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, limit, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, shared.SelectExpired, source, facet, after, content.UnixMicro(), notFound.UnixMicro(), limit)
	}, slices.Concat([]string{store.DeleteState}, store.DeleteOrphans[:])...)
}

// DeleteOldStatuses deletes statuses of entities without a snapshot if their last failure was
// before a time. Like DeleteExpired, each call examines the next `limit` rows.
func (s retentionStore) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+shared.StatusWalkSuffix, limit, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, shared.SelectOldStatuses, source, facet, after, before.UnixMicro(), limit)
	}, store.DeleteStatus)
}

// walk examines the next `limit` keys of a facet and runs the statements in "deletes" for each
// expired key. It stores the key after which the next call continues, in the row of
// retention_walks with the given name.
func (s retentionStore) walk(ctx context.Context, source, facet, name string, limit int,
	selectKeys func(tx *sql.Tx, after string) (examined int, last string, keys []string, err error), deletes ...string,
) (deleted int, done bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, shared.InsertRetentionWalk, source, name); err != nil {
			return err
		}
		var after string
		if err := tx.QueryRowContext(ctx, shared.SelectRetentionWalk, source, name).Scan(&after); err != nil {
			return err
		}
		examined, last, keys, err := selectKeys(tx, after)
		if err != nil {
			return err
		}
		if done = examined < limit; done {
			last = ""
		}
		for _, key := range keys {
			for _, statement := range deletes {
				if _, err := tx.ExecContext(ctx, statement, source, facet, key); err != nil {
					return err
				}
			}
		}
		deleted = len(keys)
		_, err = tx.ExecContext(ctx, shared.UpdateRetentionWalk, source, name, last)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("delete expired rows of %s/%s: %w", source, facet, err)
	}
	return deleted, done, nil
}

// selectExpiredKeys runs a query that examines the next rows of a facet. It returns the number of
// examined rows, the last examined key, and the keys of expired rows.
func selectExpiredKeys(ctx context.Context, tx *sql.Tx, query string, args ...any) (examined int, last string, keys []string, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var key string
		if err := rows.Scan(&examined, &last, &key); err != nil {
			return 0, "", nil, err
		}
		if key != "" {
			keys = append(keys, key)
		}
	}
	return examined, last, keys, rows.Err()
}
