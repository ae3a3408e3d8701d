// Package sqlite implements the store in SQLite, for installations that run in one process. It
// passes the same conformance suite as the PostgreSQL store.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"

	"github.com/pressly/goose/v3"
	embedded "modernc.org/sqlite" // SQLite in Go, without cgo

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/tokens"
)

// Store is a store in one SQLite database. Its methods may be called concurrently.
type Store struct {
	db     *sql.DB
	keeper *sql.DB // keeps a database in memory open by one idle connection; nil for a file
	transactions
	sharedStore
	tokenStore
	prefetchedStore
	dlqStore
	retentionStore
}

// Open opens the database file at path and applies missing migrations. If path is empty, the
// database is in memory and is lost on Close.
func Open(ctx context.Context, path string) (*Store, error) { return OpenDriver(ctx, path, nil) }

// OpenDriver is Open on the driver that wrap returns for the driver of SQLite. If wrap is nil, it uses
// the driver itself. A test can thus delay and fail the statements of one process.
func OpenDriver(ctx context.Context, path string, wrap func(driver.Driver) driver.Driver) (*Store, error) {
	// A database in memory exists only while a connection to it is open. database/sql may close its
	// connection when a call is cancelled, so a second connection (keeper) stays open.
	dsn := "file:" + rand.Text() + "?mode=memory&cache=shared&_txlock=immediate"
	if path != "" {
		// Transactions begin with the write lock (_txlock=immediate): a transaction that reads
		// before it writes would otherwise fail if another process writes in between.
		dsn = "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=busy_timeout(5000)&_txlock=immediate"
	}
	var d driver.Driver = cachingDriver{&embedded.Driver{}}
	if wrap != nil {
		d = wrap(d)
	}
	db := sql.OpenDB(connector{d, dsn})
	db.SetMaxOpenConns(1) // SQLite allows only one writer at a time
	tx := transactions{db}
	run := runner{tx}
	s := &Store{
		db, nil, tx, shared.NewStore(run), tokens.NewStore(run),
		prefetchedStore{tx, prefetched.NewStore(run)},
		deadletters.NewStore(run),
		retentionStore{tx},
	}
	var err error
	if path == "" {
		s.keeper = sql.OpenDB(connector{&embedded.Driver{}, dsn})
		err = s.keeper.PingContext(ctx)
	}
	switch {
	case err != nil:
	case path == "":
		err = createTables(ctx, db)
	default:
		err = migrate(ctx, db)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open SQLite at %q: %w", path, err), s.Close())
	}
	return s, nil
}

// connector opens connections of a driver to one database.
type connector struct {
	driver driver.Driver
	dsn    string
}

// Connect implements driver.Connector. It ignores the context.
func (c connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }

// Driver returns the driver.
func (c connector) Driver() driver.Driver { return c.driver }

func migrations() (fs.FS, error) { return fs.Sub(schemas.Migrations, "migrations/sqlite") }

// createTables runs the Up part of all migrations in a new database. A database in memory is always
// new, so it needs no migration tool (goose) and no table of applied migrations.
func createTables(ctx context.Context, db *sql.DB) error {
	scripts, err := migrations()
	if err != nil {
		return err
	}
	names, err := fs.Glob(scripts, "*.sql") // fs.Glob sorts the files by name, and so by the number of the migration
	if err != nil {
		return err
	}
	for _, name := range names {
		text, err := fs.ReadFile(scripts, name)
		if err != nil {
			return err
		}
		up, _, _ := strings.Cut(string(text), "-- +goose Down")
		if _, err := db.ExecContext(ctx, up); err != nil {
			return fmt.Errorf("run migration %s: %w", name, err)
		}
	}
	return nil
}

// migrate applies the migrations that the database file lacks.
func migrate(ctx context.Context, db *sql.DB) error {
	scripts, err := migrations()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, scripts)
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

// Close closes all connections.
func (s *Store) Close() error {
	err := s.db.Close()
	if s.keeper != nil {
		err = errors.Join(err, s.keeper.Close())
	}
	return err
}

// Ping returns nil if the database responds.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Get returns the snapshot of an entity, or store.ErrNotFound.
func (s *Store) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	snapshot := store.Snapshot{State: store.State{Entity: e}}
	row := s.db.QueryRowContext(ctx, shared.SelectSnapshot, e.Source, e.Facet, e.Key)
	err := shared.ScanState(&snapshot.State, row.Scan, &snapshot.Payload)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Snapshot{}, store.ErrNotFound
	}
	if err != nil {
		return store.Snapshot{}, fmt.Errorf("read %s: %w", e, err)
	}
	return snapshot, nil
}

const selectState = `SELECT ` + shared.StateColumns + ` FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3`

// States returns the states of the entities in the given order. Version is 0 for an entity without
// a stored state.
func (s *Store) States(ctx context.Context, entities []schemas.Entity) ([]store.State, error) {
	return readStates(ctx, s.db, entities)
}

// querier is a database or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func readStates(ctx context.Context, db querier, entities []schemas.Entity) ([]store.State, error) {
	states := make([]store.State, len(entities))
	for i, e := range entities {
		states[i].Entity = e
		err := shared.ScanState(&states[i], db.QueryRowContext(ctx, selectState, e.Source, e.Facet, e.Key).Scan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read %s: %w", e, err)
		}
	}
	return states, nil
}

// GetAll returns the snapshots of the entities in the given order. Version is 0 for an entity
// without a stored state.
func (s *Store) GetAll(ctx context.Context, keys []schemas.Entity) ([]store.Snapshot, error) {
	snapshots := make([]store.Snapshot, len(keys))
	for i, e := range keys {
		var err error
		if snapshots[i], err = s.Get(ctx, e); errors.Is(err, store.ErrNotFound) {
			snapshots[i].Entity = e
		} else if err != nil {
			return nil, err
		}
	}
	return snapshots, nil
}
