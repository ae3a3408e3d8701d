// Package sqlite keeps snapshots in SQLite, for the mode in which everything
// runs in one process. It passes the same suite as the production store.
package sqlite

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // a SQLite that needs no C compiler

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store keeps snapshots in one SQLite database.
type Store struct {
	db     *sql.DB
	keeper *sql.DB // has one idle connection to a database in memory; nil for a file
	// get reads a snapshot. It is prepared: parsing it takes four times as long as
	// running it, and a burst of reads of new keys waits for that on one connection.
	get *sql.Stmt
}

// Open opens the database in the file at path, or one in memory that is lost on
// Close if path is empty, and brings it up to this release.
func Open(ctx context.Context, path string) (*Store, error) {
	// A database in memory lives as long as a connection to it, and database/sql gives one up
	// when a call is cancelled at the wrong moment: another one keeps it.
	dsn := "file:" + rand.Text() + "?mode=memory&cache=shared&_txlock=immediate"
	if path != "" {
		// A transaction that reads before it writes must not find at its write that
		// another process does so too: it begins with the right to write.
		dsn = "file:" + (&url.URL{Path: path}).EscapedPath() + "?_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=busy_timeout(5000)&_txlock=immediate"
	}
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open SQLite at %q: %w", path, err)
	}
	db.SetMaxOpenConns(1) // SQLite has one writer
	s := &Store{db: db}
	if path == "" {
		if s.keeper, err = sql.Open("sqlite", dsn); err == nil {
			err = s.keeper.PingContext(ctx)
		}
	}
	if err == nil {
		err = migrate(ctx, db)
	}
	if err == nil {
		s.get, err = db.PrepareContext(ctx, store.SelectSnapshot)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open SQLite at %q: %w", path, err), s.Close())
	}
	return s, nil
}

func migrate(ctx context.Context, db *sql.DB) error {
	scripts, err := fs.Sub(schemas.Migrations, "migrations/sqlite")
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

// Close closes the database.
func (s *Store) Close() error {
	err := s.db.Close()
	if s.keeper != nil {
		err = errors.Join(err, s.keeper.Close())
	}
	return err
}

// Ping returns nil if the database answers.
func (s *Store) Ping(ctx context.Context) error { return s.db.PingContext(ctx) }

// Get returns an entity's snapshot, or store.ErrNotFound.
func (s *Store) Get(ctx context.Context, e schemas.Entity) (store.Snapshot, error) {
	snapshot := store.Snapshot{State: store.State{Entity: e}}
	row := s.get.QueryRowContext(ctx, e.Source, e.Facet, e.Key)
	err := snapshot.ScanState(row.Scan, &snapshot.Payload)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Snapshot{}, store.ErrNotFound
	}
	if err != nil {
		return store.Snapshot{}, fmt.Errorf("read %s: %w", e, err)
	}
	return snapshot, nil
}

const selectState = `SELECT ` + store.StateColumns + ` FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3`

// States returns the states of the entities in their order; Version is 0 where
// nothing is stored.
func (s *Store) States(ctx context.Context, entities []schemas.Entity) ([]store.State, error) {
	states := make([]store.State, len(entities))
	for i, e := range entities {
		states[i].Entity = e
		err := states[i].ScanState(s.db.QueryRowContext(ctx, selectState, e.Source, e.Facet, e.Key).Scan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read %s: %w", e, err)
		}
	}
	return states, nil
}

// GetAll returns the snapshots of the entities in their order; Version is 0 where
// nothing is stored.
func (s *Store) GetAll(ctx context.Context, of []schemas.Entity) ([]store.Snapshot, error) {
	snapshots := make([]store.Snapshot, len(of))
	for i, e := range of {
		var err error
		if snapshots[i], err = s.Get(ctx, e); errors.Is(err, store.ErrNotFound) {
			snapshots[i].Entity = e
		} else if err != nil {
			return nil, err
		}
	}
	return snapshots, nil
}

// Delete removes what is stored of an entity, if anything.
func (s *Store) Delete(ctx context.Context, e schemas.Entity) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, statement := range []string{store.DeleteState, store.DeletePayload, store.DeleteStatus} {
			if _, err := tx.ExecContext(ctx, statement, e.Source, e.Facet, e.Key); err != nil {
				return fmt.Errorf("delete %s: %w", e, err)
			}
		}
		return nil
	})
}

// DeleteSnapshot deletes what is stored of an entity, its failures and its registration, and
// writes the entry that says who had it deleted, all of it or, with an error, nothing. was
// reports whether there was anything; if not, nothing is written. Refreshes that wait for quiet
// are deleted too. Dead letters and other effects of its changes remain. A fetch that is under
// way may bring it back.
func (s *Store) DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (was bool, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for _, statement := range store.DeleteSnapshot {
			deleted, err := wroteRow(tx.ExecContext(ctx, statement, e.Source, e.Facet, e.Key))
			if err != nil {
				return err
			}
			was = was || deleted
		}
		if !was {
			return nil
		}
		_, err := tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("delete all of %s: %w", e, err)
	}
	return was, nil
}

func (s *Store) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	ended := false
	defer func() {
		if !ended { // a panic: the one connection must not stay in a transaction
			_ = tx.Rollback()
		}
	}()
	err = do(tx)
	ended = true
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// collect returns the rows of a query.
func collect[T any](ctx context.Context, db *sql.DB, fill func(*T, func(...any) error) error, query string, args ...any) (all []T, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var one T
		if err := fill(&one, rows.Scan); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}
