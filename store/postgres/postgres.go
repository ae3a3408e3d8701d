// Package postgres keeps snapshots in PostgreSQL. It works through a PgBouncer
// in transaction mode: no session state, no advisory locks, no LISTEN.
package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store keeps snapshots in one PostgreSQL database.
type Store struct {
	pool *pgxpool.Pool
}

// Open connects to the database at url, which must have been migrated.
func Open(ctx context.Context, url string) (*Store, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	// Prepared statements belong to a session, which PgBouncer in transaction
	// mode hands around: there pgx's default failed most queries.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return &Store{pool}, nil
}

// Close closes the connections.
func (s *Store) Close() { s.pool.Close() }

// Stat tells of the connections.
func (s *Store) Stat() *pgxpool.Stat { return s.pool.Stat() }

// Ping returns nil if the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }

// Get returns an entity's snapshot, or store.ErrNotFound.
func (s *Store) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	snapshot := store.Snapshot{State: store.State{Entity: e}}
	row := s.pool.QueryRow(ctx, store.SelectSnapshot, e.Source, e.Facet, e.Key)
	err := snapshot.ScanState(row.Scan, &snapshot.Payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Snapshot{}, store.ErrNotFound
	}
	if err != nil {
		return store.Snapshot{}, fmt.Errorf("read %s: %w", e, err)
	}
	return snapshot, nil
}

const (
	// joinEntities looks each up by its key, whatever the planner thinks: it counts all
	// partitions for each, and would rather read the whole table for some hundreds.
	joinEntities = `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM snapshot_state s WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key LIMIT 1) s`
	selectStates    = `SELECT i.n, ` + store.StateColumns + joinEntities
	selectSnapshots = `SELECT i.n, ` + store.StateColumns + `, p.payload` + joinEntities + `
LEFT JOIN LATERAL (SELECT p.payload FROM snapshot_payload p
	WHERE p.source = i.source AND p.facet = i.facet AND p.key = i.key LIMIT 1) p ON true`
)

// GetAll returns the snapshots of the entities in their order, in one round trip;
// Version is 0 where nothing is stored.
func (s *Store) GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	snapshots := make([]store.Snapshot, len(of))
	for i, e := range of {
		snapshots[i].Entity = e
	}
	err := forEachEntity(ctx, s.pool, selectSnapshots, of, func(found *store.Snapshot, scan func(...any) error) error {
		return found.ScanState(scan, &found.Payload)
	}, func(i int, found store.Snapshot) {
		found.Entity = of[i]
		snapshots[i] = found
	})
	if err != nil {
		return nil, fmt.Errorf("read %d snapshots: %w", len(of), err)
	}
	return snapshots, nil
}

// States returns the states of the entities in their order, in one round trip;
// Version is 0 where nothing is stored.
func (s *Store) States(ctx context.Context, of []schemas.Entity) ([]store.State, error) {
	states := make([]store.State, len(of))
	for i, e := range of {
		states[i].Entity = e
	}
	err := forEachEntity(ctx, s.pool, selectStates, of, func(found *store.State, scan func(...any) error) error {
		return found.ScanState(scan)
	}, func(i int, found store.State) {
		found.Entity = of[i]
		states[i] = found
	})
	if err != nil {
		return nil, fmt.Errorf("read %d states: %w", len(of), err)
	}
	return states, nil
}

// indexOnly begins a transaction in which the planner has no choice but an index, in the
// same round trip. What it knows of due times is always old; it counts each partition for
// each key; and so it would rather read a table of a million rows whole than look up some
// hundreds of them, and lock and sort more than is wanted.
var indexOnly = pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off`}

// querier is the pool, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// forEachEntity runs a query whose first column is an entity's place among those asked for,
// counted from 1, and hands on what was scanned from the others for that place.
func forEachEntity[T any](ctx context.Context, db querier, query string, of []schemas.Entity,
	scan func(found *T, scan func(...any) error) error, place func(i int, found T),
) error {
	var a entities
	for _, e := range of {
		a.add(e)
	}
	rows, err := db.Query(ctx, query, a.sources, a.facets, a.keys)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		var found T
		if err := scan(&found, func(to ...any) error { return rows.Scan(append([]any{&n}, to...)...) }); err != nil {
			return err
		}
		place(n-1, found)
	}
	return rows.Err()
}

// Delete removes what is stored of an entity, if anything.
func (s *Store) Delete(ctx context.Context, e schemas.Entity) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// The state first, as a Write does: two in the other order wait in a circle. The payload
		// of one that was stored meanwhile stays.
		for _, statement := range []string{store.DeleteState, store.DeleteOrphan, store.DeleteStatus} {
			if _, err := tx.Exec(ctx, statement, e.Source, e.Facet, e.Key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete %s: %w", e, err)
	}
	return nil
}

// DeleteSnapshot deletes what is stored of an entity, its failures and its registration, and
// writes the entry that says who had it deleted, all of it or, with an error, nothing. was
// reports whether there was anything; if not, nothing is written. Refreshes that wait for quiet
// are deleted too. Dead letters and other effects of its changes remain. A fetch that is under
// way may bring it back.
func (s *Store) DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		for _, statement := range store.DeleteSnapshot {
			tag, err := tx.Exec(ctx, statement, e.Source, e.Facet, e.Key)
			if err != nil {
				return err
			}
			was = was || tag.RowsAffected() > 0
		}
		if !was {
			return nil
		}
		_, err := tx.Exec(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("delete all of %s: %w", e, classifyError(err))
	}
	return was, nil
}

// entities are the arrays that unnest takes.
type entities struct{ sources, facets, keys []string }

func (a *entities) add(e schemas.Entity) {
	a.sources, a.facets, a.keys = append(a.sources, e.Source), append(a.facets, e.Facet), append(a.keys, e.Key)
}

// collect returns the rows of a query.
func collect[T any](ctx context.Context, pool *pgxpool.Pool, fill func(*T, func(...any) error) error, query string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (one T, err error) {
		err = fill(&one, row.Scan)
		return one, err
	})
}
