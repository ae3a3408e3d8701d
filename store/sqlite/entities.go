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
)

const (
	insertEntity       = store.InsertEntity + ` VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`
	registerEntity     = insertEntity + store.OnConflictReplace
	countReads         = insertEntity + store.OnConflictCountReads
	selectEntityExists = `SELECT EXISTS (SELECT 1 FROM entities WHERE source = $1 AND facet = $2 AND key = $3)`
	entityBatch        = 5000
)

// RegisterEntities registers entities in one transaction and returns how many were new. For a
// registered entity it replaces params, pinned and enabled, and the tier if the new row is pinned;
// history and due time are kept.
func (s *Store) RegisterEntities(ctx context.Context, all []store.RegisteredEntity) (added int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, r := range store.SortRegisteredEntities(all) {
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
func (s *Store) ObserveReads(ctx context.Context, reads []store.EntityReads, refreshNow store.RefreshNowFunc) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		sorted := store.SortReads(reads)
		counted := store.NewCountedReads(sorted, refreshNow)
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

// BringForward makes entities due earlier. An entity that is due earlier already, or is not
// registered, is not changed.
func (s *Store) BringForward(ctx context.Context, all []store.DueTime) error {
	if err := s.inTx(ctx, func(tx *sql.Tx) error { return bringForward(ctx, tx, all) }); err != nil {
		return fmt.Errorf("make %d entities due earlier: %w", len(all), err)
	}
	return nil
}

func bringForward(ctx context.Context, tx *sql.Tx, all []store.DueTime) error {
	for _, d := range all {
		e := d.Entity
		if _, err := tx.ExecContext(ctx, store.BringForward, e.Source, e.Facet, e.Key, d.At.UnixMicro()); err != nil {
			return err
		}
	}
	return nil
}

func insert(ctx context.Context, tx *sql.Tx, statement string, r store.RegisteredEntity) error {
	args, err := r.InsertArgs()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, statement, args...)
	return err
}

// EnableEntities enables or disables entities and returns how many it changed. If keys is not nil,
// it changes the entities with these keys of the filter's source and facet; otherwise all entities
// that match the filter.
func (s *Store) EnableEntities(ctx context.Context, filter store.EntityFilter, keys []string, enabled bool) (int, error) {
	n, err := filter.SetEnabled(keys, enabled, entityBatch, func(f store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error) {
		return s.Entities(ctx, f, after, limit)
	}, func(keys []schemas.Entity) (int, error) {
		return s.eachEntity(ctx, keys, store.SetEntityEnabled, enabled)
	})
	if err != nil {
		return n, fmt.Errorf("set enabled = %v for entities: %w", enabled, err)
	}
	return n, nil
}

// PinEntities pins entities to a tier and returns how many it changed.
func (s *Store) PinEntities(ctx context.Context, keys []schemas.Entity, tier store.Tier) (int, error) {
	n, err := s.eachEntity(ctx, keys, store.PinEntity, int64(tier))
	if err != nil {
		return 0, fmt.Errorf("pin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// UnpinEntities unpins entities, so that reads change their tier again, and returns how many were
// pinned.
func (s *Store) UnpinEntities(ctx context.Context, keys []schemas.Entity) (int, error) {
	n, err := s.eachEntity(ctx, keys, store.UnpinEntity)
	if err != nil {
		return 0, fmt.Errorf("unpin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// eachEntity runs a statement for each entity in one transaction, and returns the number of written
// rows.
func (s *Store) eachEntity(ctx context.Context, keys []schemas.Entity, statement string, args ...any) (written int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, e := range store.SortEntities(keys) {
			did, err := wroteRow(tx.ExecContext(ctx, statement, append([]any{e.Source, e.Facet, e.Key}, args...)...))
			if err != nil {
				return err
			}
			if did {
				written++
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return written, nil
}

// Entities returns at most `limit` registered entities that match the filter, in the order of
// source, facet and key. The list starts after the given entity.
func (s *Store) Entities(ctx context.Context, filter store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error) {
	query, args := filter.SelectEntities(after, limit)
	all, err := selectEntities(ctx, s.db, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list entities: %w", err)
	}
	return all, nil
}

// selectEntities runs a query of registered entities.
func selectEntities(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, args ...any,
) (all []store.RegisteredEntity, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r store.RegisteredEntity
		if err := r.ScanEntity(rows.Scan); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// EntityParams returns the registered params of the entities, in the given order. The params of an
// entity that is not registered are nil. A registered entity without params has an empty map.
func (s *Store) EntityParams(ctx context.Context, keys []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	for i, e := range keys {
		var text []byte
		err := s.db.QueryRowContext(ctx, `SELECT params FROM entities WHERE source = $1 AND facet = $2 AND key = $3`, e.Source, e.Facet, e.Key).Scan(&text)
		if err == nil {
			all[i], err = store.ScanParams(text)
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read the params of %s: %w", e, err)
		}
	}
	return all, nil
}

// CountEntities returns how many entities match the filter. The number is always exact.
func (s *Store) CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error) {
	from, args := filter.FromWhere()
	if err := s.db.QueryRowContext(ctx, "SELECT count(*)"+from, args...).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	return n, true, nil
}

// DeleteEntity unregisters an entity and reports whether it was registered. Its snapshot is kept.
func (s *Store) DeleteEntity(ctx context.Context, e schemas.Entity) (existed bool, err error) {
	if existed, err = wroteRow(s.db.ExecContext(ctx, store.DeleteEntity, e.Source, e.Facet, e.Key)); err != nil {
		return false, fmt.Errorf("delete the entity %s: %w", e, err)
	}
	return existed, nil
}

// DeleteExpired deletes snapshots of a facet whose content was fetched before the time `content`, and
// not-found results that were checked before the time `notFound`. Each call examines the next `limit`
// snapshots in the order of their keys. It continues after the last key that the previous call
// examined. `done` is set when the facet's last snapshot has been examined; the next call starts again
// at the first key. Statuses and dead letters are kept.
func (s *Store) DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, limit, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectExpired, source, facet, after, content.UnixMicro(), notFound.UnixMicro(), limit)
	}, slices.Concat([]string{store.DeleteState}, store.DeleteOrphans[:])...)
}

// DeleteOldStatuses deletes statuses of entities without a snapshot if their last failure was
// before a time. Like DeleteExpired, each call examines the next `limit` rows.
func (s *Store) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+store.StatusWalkSuffix, limit, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectOldStatuses, source, facet, after, before.UnixMicro(), limit)
	}, store.DeleteStatus)
}

// walk examines the next `limit` keys of a facet and runs the statements in "deletes" for each
// expired key. It stores the key after which the next call continues, in the row of
// retention_walks with the given name.
func (s *Store) walk(ctx context.Context, source, facet, name string, limit int,
	selectKeys func(tx *sql.Tx, after string) (examined int, last string, keys []string, err error), deletes ...string,
) (deleted int, done bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, store.InsertRetentionWalk, source, name); err != nil {
			return err
		}
		var after string
		if err := tx.QueryRowContext(ctx, store.SelectRetentionWalk, source, name).Scan(&after); err != nil {
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
		_, err = tx.ExecContext(ctx, store.UpdateRetentionWalk, source, name, last)
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
