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

	// entityBatch bounds what one transaction writes, and for how long others wait for it.
	entityBatch = 5000

	// exactCost is the planner's cost up to which rows are counted one by one: some tenths
	// of a second.
	exactCost = 50_000
)

// RegisterEntities registers entities, and returns how many were unknown. Of those that
// are there params, pinned and enabled are replaced, and the tier if it is pinned; their
// history and due time remain. Each few thousand are a transaction of their own; after an error the
// same may be registered again.
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

// ObserveReads adds reads to entities, and registers those that are unknown. When an
// entity is due does not change, so no index is written, unless risen (which may be nil)
// says so of it: then it is due when it was read. After an error some may have been counted.
func (s *Store) ObserveReads(ctx context.Context, reads []store.EntityReads, risen store.RefreshNowFunc) error {
	for batch := range slices.Chunk(store.SortReads(reads), entityBatch) {
		all := make([]store.RegisteredEntity, len(batch))
		for i, r := range batch {
			all[i] = r.RegisteredEntity()
		}
		rising := store.NewCountedReads(batch, risen)
		args, err := registeredColumns(all)
		if err == nil {
			err = s.countReads(ctx, args, rising)
		}
		if err == nil && len(rising.RefreshNow) > 0 {
			err = s.BringForward(ctx, rising.RefreshNow)
		}
		if err != nil {
			return fmt.Errorf("count reads of %d entities: %w", len(reads), classifyError(err))
		}
	}
	return nil
}

func (s *Store) countReads(ctx context.Context, args []any, rising *store.CountedReads) error {
	rows, err := s.pool.Query(ctx, countReads, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rising.ScanCounted(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// BringForward makes entities due earlier. An entity that is due earlier than that already,
// or that is not registered, is left as it is.
func (s *Store) BringForward(ctx context.Context, all []store.DueTime) error {
	var b pgx.Batch // one transaction
	for _, d := range store.SortDueTimes(all) {
		b.Queue(store.BringForward, d.Entity.Source, d.Entity.Facet, d.Entity.Key, d.At.UnixMicro())
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("bring %d entities forward: %w", len(all), classifyError(err))
	}
	return nil
}

// registeredColumns are entities as the arrays that unnest takes.
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
		params, tiers = append(params, args[3].(string)), append(tiers, int16(r.Tier)) //nolint:gosec // there are three
		enabled, pinned, due = append(enabled, r.Enabled), append(pinned, r.Pinned), append(due, args[6].(int64))
		claimed, updated = append(claimed, args[7].(int64)), append(updated, args[8].(int64))
		changes, watched = append(changes, r.History.Changes), append(watched, args[10].(int64))
		reads, read = append(reads, r.History.Reads), append(read, args[12].(int64))
	}
	return []any{e.sources, e.facets, e.keys, params, tiers, enabled, due, claimed, updated, changes, watched, reads, read, pinned}, nil
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

// PinEntities pins entities to a tier, and returns how many were not so already. Each few
// thousand are a transaction of their own.
func (s *Store) PinEntities(ctx context.Context, of []schemas.Entity, tier store.Tier) (int, error) {
	n, err := s.eachEntity(ctx, of, store.PinEntity, int16(tier)) //nolint:gosec // there are three
	if err != nil {
		return n, fmt.Errorf("pin %d entities: %w", len(of), err)
	}
	return n, nil
}

// UnpinEntities lets reads move entities between tiers again, and returns how many were pinned.
func (s *Store) UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error) {
	n, err := s.eachEntity(ctx, of, store.UnpinEntity)
	if err != nil {
		return n, fmt.Errorf("unpin %d entities: %w", len(of), err)
	}
	return n, nil
}

// eachEntity runs a statement for each entity in one round trip for some thousands, and
// returns how many rows they wrote.
func (s *Store) eachEntity(ctx context.Context, of []schemas.Entity, statement string, args ...any) (written int, err error) {
	for batch := range slices.Chunk(store.SortEntities(of), entityBatch) {
		var b pgx.Batch // one transaction
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

// Entities returns registered entities that the filter chooses, in their order, those
// behind an entity, limit of them at most.
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

// EntityParams returns the params that the entities are registered with, in their
// order; nil where there are none.
func (s *Store) EntityParams(ctx context.Context, of []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(of))
	err := forEachEntity(ctx, s.pool, selectParams, of, func(found *map[string]string, scan func(...any) error) error {
		var text []byte
		if err := scan(&text); err != nil {
			return err
		}
		var err error
		*found, err = store.ScanParams(text)
		return err
	}, func(i int, found map[string]string) { all[i] = found })
	if err != nil {
		return nil, fmt.Errorf("read the params of %d entities: %w", len(of), err)
	}
	return all, nil
}

// CountEntities returns how many the filter chooses; exact is false if that is an
// estimate, since counting would take long.
func (s *Store) CountEntities(ctx context.Context, filter store.EntityFilter) (n int64, exact bool, err error) {
	return s.count(ctx, filter, exactCost)
}

func (s *Store) count(ctx context.Context, filter store.EntityFilter, most float64) (n int64, exact bool, err error) {
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
		return 0, false, fmt.Errorf("count entities: the database's estimate: %w", err)
	}
	if len(plans) == 1 && plans[0].Plan.Cost > most {
		return int64(plans[0].Plan.Rows), false, nil
	}
	if err := s.pool.QueryRow(ctx, "SELECT count(*)"+from, args...).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("count entities: %w", err)
	}
	return n, true, nil
}

// DeleteEntity takes an entity off the schedule for good, and reports whether it was on
// it. What is stored of it remains.
func (s *Store) DeleteEntity(ctx context.Context, e schemas.Entity) (was bool, err error) {
	tag, err := s.pool.Exec(ctx, store.DeleteEntity, e.Source, e.Facet, e.Key)
	if err != nil {
		return false, fmt.Errorf("delete the entity %s: %w", e, err)
	}
	return tag.RowsAffected() == 1, nil
}
