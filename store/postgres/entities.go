package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

const (
	insertEntities = prefetched.InsertEntity + `
SELECT i.source, i.facet, i.key, i.params::json, i.tier, i.enabled, i.due_at,
	i.claimed_at, i.updated_at, i.changes, i.watched, i.reads, i.read_at, i.pinned
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::bool[], $7::bigint[],
	$8::bigint[], $9::bigint[], $10::double precision[], $11::bigint[], $12::double precision[], $13::bigint[], $14::bool[])
	AS i (source, facet, key, params, tier, enabled, due_at, claimed_at, updated_at, changes, watched, reads, read_at, pinned)`

	registerEntities = insertEntities + prefetched.OnConflictReplace + ` RETURNING xmax = 0`
	countReads       = insertEntities + prefetched.OnConflictCountReads

	selectParams = `SELECT i.n, e.params
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT params FROM entities e WHERE e.source = i.source AND e.facet = i.facet AND e.key = i.key LIMIT 1) e`

	// exactCost is the maximum cost, as estimated by the planner, at which CountEntities counts the
	// rows. Counting at this cost takes some tenths of a second. At a higher cost, CountEntities
	// returns the planner's estimate of the number of rows.
	exactCost = 50_000
)

// RegisterEntities registers entities and returns how many were new. For a registered entity it
// replaces params, pinned and enabled, and the tier if the new row is pinned; history and due time
// are kept. Each batch of prefetched.EntityBatch rows is one transaction. After an error the same entities
// can be registered again.
func (s prefetchedStore) RegisterEntities(ctx context.Context, all []prefetched.RegisteredEntity) (added int, err error) {
	for batch := range slices.Chunk(prefetched.SortRegisteredEntities(all), prefetched.EntityBatch) {
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
func (s prefetchedStore) ObserveReads(ctx context.Context, reads []prefetched.EntityReads, refreshNow prefetched.RefreshNowFunc) error {
	for batch := range slices.Chunk(prefetched.SortReads(reads), prefetched.EntityBatch) {
		all := make([]prefetched.RegisteredEntity, len(batch))
		for i, r := range batch {
			all[i] = r.RegisteredEntity()
		}
		counted := prefetched.NewCountedReads(batch, refreshNow)
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

func (s prefetchedStore) countReads(ctx context.Context, args []any, counted *prefetched.CountedReads) error {
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

// registeredColumns returns the fields of entities, one slice per column, as array arguments of
// unnest.
func registeredColumns(all []prefetched.RegisteredEntity) ([]any, error) {
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

// EntityParams returns the registered params of the entities, in the given order. The params of an
// entity that is not registered are nil. A registered entity without params has an empty map.
func (s prefetchedStore) EntityParams(ctx context.Context, keys []schemas.Entity) ([]map[string]string, error) {
	all := make([]map[string]string, len(keys))
	err := forEachEntity(ctx, s.read, selectParams, keys, func(found *map[string]string, scan func(...any) error) error {
		var text []byte
		if err := scan(&text); err != nil {
			return err
		}
		var err error
		*found, err = prefetched.ScanParams(text)
		return err
	}, func(i int, found map[string]string) { all[i] = found })
	if err != nil {
		return nil, fmt.Errorf("read the params of %d entities: %w", len(keys), err)
	}
	return all, nil
}

// CountEntities returns how many entities match the filter. `exact` is false if the number is the
// planner's estimate, because counting would take too long.
func (s prefetchedStore) CountEntities(ctx context.Context, filter prefetched.Filter) (n int64, exact bool, err error) {
	return s.count(ctx, filter, exactCost)
}

func (s prefetchedStore) count(ctx context.Context, filter prefetched.Filter, maxCost float64) (n int64, exact bool, err error) {
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
