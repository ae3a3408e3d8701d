package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

const (
	insertEntities = store.InsertEntity + `
SELECT i.source, i.facet, i.key, i.params::json, i.tier, i.enabled, i.due_at,
	i.claimed_at, i.updated_at, i.changes, i.watched, i.reads, i.read_at, i.pinned
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::bool[], $7::bigint[],
	$8::bigint[], $9::bigint[], $10::double precision[], $11::bigint[], $12::double precision[], $13::bigint[], $14::bool[])
	AS i (source, facet, key, params, tier, enabled, due_at, claimed_at, updated_at, changes, watched, reads, read_at, pinned)`

	registerEntities = insertEntities + store.OnConflictReplace + ` RETURNING xmax = 0`
	countReads       = insertEntities + store.OnConflictCountReads

	selectParams = `SELECT i.n, e.params
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT params FROM entities e WHERE e.source = i.source AND e.facet = i.facet AND e.key = i.key LIMIT 1) e`

	// entityBatch is the maximum number of rows of one transaction. It bounds how long other
	// transactions wait for locks on these rows.
	entityBatch = 5000

	// exactCost is the maximum cost, as estimated by the planner, at which CountEntities counts the
	// rows. Counting at this cost takes some tenths of a second. At a higher cost, CountEntities
	// returns the planner's estimate of the number of rows.
	exactCost = 50_000
)

// RegisterEntities registers entities and returns how many were new. For a registered entity it
// replaces params, pinned and enabled, and the tier if the new row is pinned; history and due time
// are kept. Each batch of entityBatch rows is one transaction. After an error the same entities
// can be registered again.
func (s *Store) RegisterEntities(ctx context.Context, all []store.RegisteredEntity) (added int, err error) {
	for batch := range slices.Chunk(store.SortRegisteredEntities(all), entityBatch) {
		args, err := registeredColumns(batch)
		if err != nil {
			return added, fmt.Errorf("register %d entities: %w", len(all), err)
		}
		rows, err := s.pool.Query(ctx, registerEntities, args...)
		if err != nil {
			return added, fmt.Errorf("register %d entities: %w", len(all), classifyError(err))
		}
		n, unknown := 0, false
		_, err = pgx.ForEachRow(rows, []any{&unknown}, func() error {
			if unknown {
				n++
			}
			return nil
		})
		if err != nil {
			return added, fmt.Errorf("register %d entities: %w", len(all), classifyError(err))
		}
		added += n
	}
	return added, nil
}

// ObserveReads adds reads to entities and registers unknown entities. An entity's due time does not
// change, and no index is written, unless refreshNow (which may be nil) returns true: then the
// entity is due at the time of the read. After an error some reads may have been counted.
func (s *Store) ObserveReads(ctx context.Context, reads []store.EntityReads, refreshNow store.RefreshNowFunc) error {
	for batch := range slices.Chunk(store.SortReads(reads), entityBatch) {
		all := make([]store.RegisteredEntity, len(batch))
		for i, r := range batch {
			all[i] = r.RegisteredEntity()
		}
		counted := store.NewCountedReads(batch, refreshNow)
		args, err := registeredColumns(all)
		if err == nil {
			err = s.countReads(ctx, args, counted)
		}
		if err == nil && len(counted.DueNow) > 0 {
			err = s.BringForward(ctx, counted.DueNow)
		}
		if err != nil {
			return fmt.Errorf("count reads of %d entities: %w", len(reads), classifyError(err))
		}
	}
	return nil
}

func (s *Store) countReads(ctx context.Context, args []any, counted *store.CountedReads) error {
	rows, err := s.pool.Query(ctx, countReads, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := counted.ScanCounted(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// BringForward makes entities due earlier. An entity that is due earlier already, or is not
// registered, is not changed.
func (s *Store) BringForward(ctx context.Context, all []store.DueTime) error {
	var b pgx.Batch // the batch runs as one transaction
	for _, d := range store.SortDueTimes(all) {
		b.Queue(store.BringForward, d.Entity.Source, d.Entity.Facet, d.Entity.Key, d.At.UnixMicro())
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("make %d entities due earlier: %w", len(all), classifyError(err))
	}
	return nil
}

// registeredColumns returns the fields of entities, one slice per column, as array arguments of
// unnest.
func registeredColumns(all []store.RegisteredEntity) ([]any, error) {
	var e entities
	var params []string
	var tiers []int16
	var enabled, pinned []bool
	var due, claimed, updated, watched, read []int64
	var changes, reads []float64
	for _, r := range all {
		args, err := r.InsertArgs()
		if err != nil {
			return nil, err
		}
		e.add(r.Entity)
		params, tiers = append(params, args[3].(string)), append(tiers, int16(r.Tier)) //nolint:gosec // there are only three tiers
		enabled, pinned, due = append(enabled, r.Enabled), append(pinned, r.Pinned), append(due, args[6].(int64))
		claimed, updated = append(claimed, args[7].(int64)), append(updated, args[8].(int64))
		changes, watched = append(changes, r.History.Changes), append(watched, args[10].(int64))
		reads, read = append(reads, r.History.Reads), append(read, args[12].(int64))
	}
	return []any{e.sources, e.facets, e.keys, params, tiers, enabled, due, claimed, updated, changes, watched, reads, read, pinned}, nil
}

// EnableEntities enables or disables entities and returns how many it changed. If keys is not nil,
// it changes the entities with these keys of the filter's source and facet; otherwise all entities
// that match the filter. Each batch of entityBatch rows is one transaction.
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

// PinEntities pins entities to a tier and returns how many it changed. Each batch of entityBatch
// rows is one transaction.
func (s *Store) PinEntities(ctx context.Context, keys []schemas.Entity, tier store.Tier) (int, error) {
	n, err := s.eachEntity(ctx, keys, store.PinEntity, int16(tier)) //nolint:gosec // there are only three tiers
	if err != nil {
		return n, fmt.Errorf("pin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// UnpinEntities unpins entities, so that reads change their tier again, and returns how many were
// pinned.
func (s *Store) UnpinEntities(ctx context.Context, keys []schemas.Entity) (int, error) {
	n, err := s.eachEntity(ctx, keys, store.UnpinEntity)
	if err != nil {
		return n, fmt.Errorf("unpin %d entities: %w", len(keys), err)
	}
	return n, nil
}

// eachEntity runs a statement for each entity, entityBatch per round trip, and returns the number
// of written rows.
func (s *Store) eachEntity(ctx context.Context, keys []schemas.Entity, statement string, args ...any) (written int, err error) {
	for batch := range slices.Chunk(store.SortEntities(keys), entityBatch) {
		var b pgx.Batch // the batch runs as one transaction
		n := 0
		for _, e := range batch {
			b.Queue(statement, append([]any{e.Source, e.Facet, e.Key}, args...)...).Exec(func(tag pgconn.CommandTag) error {
				n += int(tag.RowsAffected())
				return nil
			})
		}
		if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
			return written, classifyError(err)
		}
		written += n
	}
	return written, nil
}

// Entities returns at most `limit` registered entities that match the filter, in the order of
// source, facet and key. The list starts after the given entity.
func (s *Store) Entities(ctx context.Context, filter store.EntityFilter, after schemas.Entity, limit int) ([]store.RegisteredEntity, error) {
	query, args := filter.SelectEntities(after, limit)
	rows, err := s.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list entities: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r store.RegisteredEntity, err error) {
		return r, r.ScanEntity(row.Scan)
	})
	if err != nil {
		return nil, fmt.Errorf("list entities: %w", err)
	}
	return all, nil
}

// EntityParams returns the registered params of the entities, in the given order. The params of an
// entity that is not registered are nil. A registered entity without params has an empty map.
func (s *Store) EntityParams(ctx context.Context, keys []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	err := forEachEntity(ctx, s.read, selectParams, keys, func(found *map[string]string, scan func(...any) error) error {
		var text []byte
		if err := scan(&text); err != nil {
			return err
		}
		var err error
		*found, err = store.ScanParams(text)
		return err
	}, func(i int, found map[string]string) { all[i] = found })
	if err != nil {
		return nil, fmt.Errorf("read the params of %d entities: %w", len(keys), err)
	}
	return all, nil
}

// CountEntities returns how many entities match the filter. `exact` is false if the number is the
// planner's estimate, because counting would take too long.
func (s *Store) CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error) {
	return s.count(ctx, filter, exactCost)
}

func (s *Store) count(ctx context.Context, filter store.EntityFilter, maxCost float64) (n int64, exact bool, err error) {
	from, args := filter.FromWhere()
	var text []byte
	if err := s.pool.QueryRow(ctx, "EXPLAIN (FORMAT JSON) SELECT 1"+from, args...).Scan(&text); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
			Cost float64 `json:"Total Cost"`
		}
	}
	if err := json.Unmarshal(text, &plans); err != nil {
		return 0, false, fmt.Errorf("count entities: parse the query plan: %w", err)
	}
	if len(plans) == 1 && plans[0].Plan.Cost > maxCost {
		return int64(plans[0].Plan.Rows), false, nil
	}
	if err := s.pool.QueryRow(ctx, "SELECT count(*)"+from, args...).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	return n, true, nil
}

// DeleteEntity unregisters an entity and reports whether it was registered. Its snapshot is kept.
func (s *Store) DeleteEntity(ctx context.Context, e schemas.Entity) (existed bool, err error) {
	tag, err := s.pool.Exec(ctx, store.DeleteEntity, e.Source, e.Facet, e.Key)
	if err != nil {
		return false, fmt.Errorf("delete the entity %s: %w", e, err)
	}
	return tag.RowsAffected() == 1, nil
}
