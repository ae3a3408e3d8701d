package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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

// RegisterEntities registers entities, and returns how many were unknown. Of those that
// are there params, pinned and enabled are replaced, and the tier if it is pinned; their
// history and due time remain. All are registered or none.
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

// ObserveReads adds reads to entities, and registers those that are unknown. When an
// entity is due does not change.
func (s *Store) ObserveReads(ctx context.Context, reads []store.EntityReads, risen store.RefreshNowFunc) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		sorted := store.SortReads(reads)
		rising := store.NewCountedReads(sorted, risen)
		for _, r := range sorted {
			args, err := r.RegisteredEntity().InsertArgs()
			if err != nil {
				return err
			}
			if err := rising.ScanCounted(tx.QueryRowContext(ctx, countReads, args...).Scan); err != nil {
				return err
			}
		}
		return bringForward(ctx, tx, rising.RefreshNow)
	})
	if err != nil {
		return fmt.Errorf("count reads of %d entities: %w", len(reads), err)
	}
	return nil
}

// BringForward makes entities due earlier. An entity that is due earlier than that already,
// or that is not registered, is left as it is.
func (s *Store) BringForward(ctx context.Context, all []store.DueTime) error {
	if err := s.inTx(ctx, func(tx *sql.Tx) error { return bringForward(ctx, tx, all) }); err != nil {
		return fmt.Errorf("bring %d entities forward: %w", len(all), err)
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

// EnableEntities puts entities back into the schedule or takes them out, and returns how
// many were not so already: all that the filter chooses or, if keys is not nil, those
// of its source and facet. Each few thousand are a transaction of their own.
func (s *Store) EnableEntities(ctx context.Context, filter store.EntityFilter, keys []string, enabled bool) (int, error) {
	n, err := filter.SetEnabled(keys, enabled, entityBatch, func(f store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error) {
		return s.Entities(ctx, f, after, limit)
	}, func(of []schemas.Entity) (int, error) { return s.eachEntity(ctx, of, store.SetEntityEnabled, enabled) })
	if err != nil {
		return n, fmt.Errorf("set entities enabled (%v): %w", enabled, err)
	}
	return n, nil
}

// PinEntities pins entities to a tier, and returns how many were not so already.
func (s *Store) PinEntities(ctx context.Context, of []schemas.Entity, tier store.Tier) (int, error) {
	n, err := s.eachEntity(ctx, of, store.PinEntity, int64(tier))
	if err != nil {
		return 0, fmt.Errorf("pin %d entities: %w", len(of), err)
	}
	return n, nil
}

// UnpinEntities lets reads move entities between tiers again, and returns how many were pinned.
func (s *Store) UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error) {
	n, err := s.eachEntity(ctx, of, store.UnpinEntity)
	if err != nil {
		return 0, fmt.Errorf("unpin %d entities: %w", len(of), err)
	}
	return n, nil
}

// eachEntity runs a statement for each entity, and returns how many rows they wrote.
func (s *Store) eachEntity(ctx context.Context, of []schemas.Entity, statement string, args ...any) (written int, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, e := range store.SortEntities(of) {
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

// Entities returns registered entities that the filter chooses, in their order, those
// behind an entity, limit of them at most.
func (s *Store) Entities(ctx context.Context, filter store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error) {
	query, args := filter.SelectEntities(after, limit)
	all, err := selectEntities(ctx, s.db, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list entities: %w", err)
	}
	return all, nil
}

// selectEntities runs a query that returns registered entities.
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

// EntityParams returns the params that the entities are registered with, in their
// order; nil where there are none.
func (s *Store) EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(of))
	for i, e := range of {
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

// CountEntities returns how many the filter chooses, always exactly.
func (s *Store) CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error) {
	from, args := filter.FromWhere()
	if err := s.db.QueryRowContext(ctx, "SELECT count(*)"+from, args...).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	return n, true, nil
}

// DeleteEntity takes an entity off the schedule for good, and reports whether it was on
// it. What is stored of it remains.
func (s *Store) DeleteEntity(ctx context.Context, e schemas.Entity) (was bool, err error) {
	if was, err = wroteRow(s.db.ExecContext(ctx, store.DeleteEntity, e.Source, e.Facet, e.Key)); err != nil {
		return false, fmt.Errorf("delete the entity %s: %w", e, err)
	}
	return was, nil
}

// DeleteExpired deletes snapshots of a facet that were fetched before a time, and
// absences looked at before another. Each call looks at the next most snapshots in the order
// of their keys, from where the last one stopped, and done says that it came to the end:
// the next begins anew. Statuses and dead letters remain.
func (s *Store) DeleteExpired(ctx context.Context, source, facet string, content, absence time.Time, most int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet, most, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectExpired, source, facet, after, content.UnixMicro(), absence.UnixMicro(), most)
	}, store.DeleteState, store.DeletePayload)
}

// DeleteOldStatuses deletes the statuses of a facet's entities of which nothing is stored and
// that failed last before a time, in the same way: most are looked at in one call.
func (s *Store) DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, most int) (deleted int, done bool, err error) {
	return s.walk(ctx, source, facet, facet+store.StatusWalkSuffix, most, func(tx *sql.Tx, after string) (int, string, []string, error) {
		return selectExpiredKeys(ctx, tx, store.SelectOldStatuses, source, facet, after, before.UnixMicro(), most)
	}, store.DeleteStatus)
}

// walk takes one step along the keys of a facet, from where the last one of this name
// stopped. ends are the statements that delete what belongs to a key.
func (s *Store) walk(ctx context.Context, source, facet, name string, most int,
	look func(tx *sql.Tx, after string) (looked int, last string, keys []string, err error), ends ...string,
) (deleted int, done bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, store.InsertRetentionWalk, source, name); err != nil {
			return err
		}
		var after string
		if err := tx.QueryRowContext(ctx, store.SelectRetentionWalk, source, name).Scan(&after); err != nil {
			return err
		}
		looked, last, keys, err := look(tx, after)
		if err != nil {
			return err
		}
		if done = looked < most; done {
			last = ""
		}
		for _, key := range keys {
			for _, statement := range ends {
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
		return 0, false, fmt.Errorf("delete what is kept too long of %s/%s: %w", source, facet, err)
	}
	return deleted, done, nil
}

// selectExpiredKeys looks at the next rows behind a key, and returns how many it looked at, the last
// one's key, and the keys of the rows that are kept too long.
func selectExpiredKeys(ctx context.Context, tx *sql.Tx, query string, args ...any) (looked int, last string, keys []string, err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return 0, "", nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var key string
		if err := rows.Scan(&looked, &last, &key); err != nil {
			return 0, "", nil, err
		}
		if key != "" {
			keys = append(keys, key)
		}
	}
	return looked, last, keys, rows.Err()
}
