// Package postgres implements the store in PostgreSQL. It works behind PgBouncer in transaction
// mode: it uses no session state, no advisory locks and no LISTEN. Only Migrate needs a direct
// connection. Reads and writes by key and the statements of InTx use prepared statements if the
// connections are direct (isDirect).
package postgres

import (
	"context"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/tokens"
)

// Store is a store in one PostgreSQL database. Its methods may be called concurrently.
type Store struct {
	pool *pgxpool.Pool
	transactions
	sharedStore
	tokenStore
	prefetchedStore
	dlqStore
	retentionStore
}

// Open connects to the database at url. The database must have been migrated.
func Open(ctx context.Context, url string) (*Store, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.url: %w", err)
	}
	// pgx's default mode uses prepared statements, which belong to a session. PgBouncer in
	// transaction mode assigns sessions per transaction, so most queries would fail in the default
	// mode.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return newStore(pool, isDirect(ctx, pool)), nil
}

// newStore returns a Store on a pool. `prepare` is true if each connection has its own session.
func newStore(pool *pgxpool.Pool, prepare bool) *Store {
	tx := transactions{pool, prepare}
	run := runner{tx}
	return &Store{
		pool, tx, shared.NewStore(run), tokens.NewStore(run),
		prefetchedStore{tx, prefetched.NewStore(run)},
		deadletters.NewStore(run),
		retentionStore{tx},
	}
}

// directProbes is how many connections isDirect examines. One is not enough, because a PgBouncer's own
// connection can have the same port by chance.
const directProbes = 2

// isDirect reports whether the connections of the pool lead to PostgreSQL without a proxy: PostgreSQL
// then sees the address and the port that the connection has in this process. With a proxy, with
// address translation, through a Unix socket, or after an error isDirect reports false. A pool without
// prepared statements works in each of these cases.
func isDirect(ctx context.Context, pool *pgxpool.Pool) bool {
	for range min(directProbes, pool.Config().MaxConns) {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return false
		}
		defer c.Release() // at the end, so that each round gets another connection
		local, ok := c.Conn().PgConn().Conn().LocalAddr().(*net.TCPAddr)
		if !ok {
			return false
		}
		var seen string
		if err := c.QueryRow(ctx, "SELECT coalesce(host(inet_client_addr()) || ' ' || inet_client_port(), '')").Scan(&seen); err != nil {
			return false
		}
		if seen != fmt.Sprint(local.IP, " ", local.Port) {
			return false
		}
	}
	return true
}

// Close closes all connections.
func (s *Store) Close() { s.pool.Close() }

// Stat returns statistics of the connection pool.
func (s *Store) Stat() *pgxpool.Stat { return s.pool.Stat() }

// Ping returns nil if the database responds.
func (s *Store) Ping(ctx context.Context) error { return s.pool.Ping(ctx) }

// Get returns the snapshot of an entity, or store.ErrNotFound.
func (s *Store) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	snapshot := store.Snapshot{State: store.State{Entity: e}}
	found := false
	err := s.read(ctx, func(scan func(...any) error) error {
		found = true
		return shared.ScanState(&snapshot.State, scan, &snapshot.Payload)
	}, shared.SelectSnapshot, e.Source, e.Facet, e.Key)
	switch {
	case err != nil:
		return store.Snapshot{}, fmt.Errorf("read %s: %w", e, err)
	case !found:
		return store.Snapshot{}, store.ErrNotFound
	}
	return snapshot, nil
}

const (
	// joinEntities forces one index lookup per entity. Without LIMIT 1 the planner overestimates the
	// cost of lookups in the partitions, and reads the whole table for a few hundred entities.
	joinEntities = `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM snapshot_state s WHERE s.source = i.source AND s.facet = i.facet AND s.key = i.key LIMIT 1) s`
	selectStates    = `SELECT i.n, ` + shared.StateColumns + joinEntities
	selectSnapshots = `SELECT i.n, ` + shared.StateColumns + `, coalesce(s.alias_payload, (SELECT p.payload FROM snapshot_payload p
	WHERE p.source = i.source AND p.facet = i.facet AND p.key = i.key LIMIT 1))` + joinEntities
)

// GetAll returns the snapshots of the entities in the given order, in one round trip. Version is 0
// for an entity without a stored state.
func (s *Store) GetAll(ctx context.Context, keys []schemas.Entity) ([]store.Snapshot, error) {
	snapshots := make([]store.Snapshot, len(keys))
	for i, e := range keys {
		snapshots[i].Entity = e
	}
	err := forEachEntity(ctx, s.read, selectSnapshots, keys, func(found *store.Snapshot, scan func(...any) error) error {
		return shared.ScanState(&found.State, scan, &found.Payload)
	}, func(i int, found store.Snapshot) {
		found.Entity = keys[i]
		snapshots[i] = found
	})
	if err != nil {
		return nil, fmt.Errorf("read %d snapshots: %w", len(keys), err)
	}
	return snapshots, nil
}

// States returns the states of the entities in the given order, in one round trip. Version is 0 for
// an entity without a stored state.
func (s *Store) States(ctx context.Context, keys []schemas.Entity) ([]store.State, error) {
	states := make([]store.State, len(keys))
	for i, e := range keys {
		states[i].Entity = e
	}
	err := forEachEntity(ctx, s.read, selectStates, keys, func(found *store.State, scan func(...any) error) error {
		return shared.ScanState(found, scan)
	}, func(i int, found store.State) {
		found.Entity = keys[i]
		states[i] = found
	})
	if err != nil {
		return nil, fmt.Errorf("read %d states: %w", len(keys), err)
	}
	return states, nil
}

// indexOnly begins a transaction in which the planner may only use index scans. The planner's
// statistics about due times are always outdated, and the planner adds the cost of every partition
// to each lookup. Without indexOnly, PostgreSQL would read a table of a million rows to find a few
// hundred of them. It would also lock and sort more rows than needed. The planner adds a cost of 1e10 to
// other scans, so a statement without an index would be compiled (jit) for 100 ms to read 50 pages.
var indexOnly = pgx.TxOptions{BeginQuery: beginIndexOnly[0] + "; " + beginIndexOnly[1]}

// beginIndexOnly are the statements that begin a transaction with indexOnly.
var beginIndexOnly = []string{"BEGIN", `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`}

// querier is a pool, a transaction, or a value of the type prepared.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// readFunc runs a query and calls the function row for each row of the result.
type readFunc func(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error

// readFrom returns a function that runs queries in a pool or transaction.
func readFrom(db querier) readFunc {
	return func(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
		rows, err := db.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		return callRow(rows, row)
	}
}

// forEachEntity runs a query with the entities as arguments. The first column of each row is the
// entity's position, counted from 1. The function "scan" reads the other columns. The function
// "place" stores the result for the position, counted from 0.
func forEachEntity[T any](ctx context.Context, read readFunc, query string, keys []schemas.Entity,
	scan func(found *T, scan func(...any) error) error, place func(i int, found T),
) error {
	var a entities
	for _, e := range keys {
		a.add(e)
	}
	var n int
	var found, empty T
	columns := []any{&n}
	var scanRow func(...any) error
	scanEntity := func(to ...any) error { // one function for all rows, which saves an allocation for each
		columns = append(columns[:1], to...)
		return scanRow(columns...)
	}
	return read(ctx, func(scanColumns func(...any) error) error {
		scanRow, found = scanColumns, empty
		if err := scan(&found, scanEntity); err != nil {
			return err
		}
		place(n-1, found)
		return nil
	}, query, a.sources, a.facets, a.keys)
}

// entities holds the sources, facets and keys of entities, one slice per column, as array
// arguments of unnest.
type entities struct{ sources, facets, keys []string }

func (a *entities) add(e schemas.Entity) {
	a.sources, a.facets, a.keys = append(a.sources, e.Source), append(a.facets, e.Facet), append(a.keys, e.Key)
}
