// Package shared has the SQL texts and the rules that both databases use. Store has the operations that
// are the same in both: one statement, or one statement and its audit entry. The databases embed Store,
// and implement DB with their drivers.
package shared

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// Querier runs queries in a database or, as store.Tx, in a transaction.
type Querier interface {
	// Query calls the function row for each row of the result.
	Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error
}

// DB runs statements in a database.
type DB interface {
	Querier
	// Exec runs a statement. It returns the number of rows that the statement has written.
	Exec(ctx context.Context, statement string, args ...any) (written int64, err error)
	// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
	InTx(ctx context.Context, do func(store.Tx) error) error
}

// Store has the shared operations of a database's store.
type Store struct {
	keys
	settings
	backlogs
	lists
	snapshots
}

// NewStore returns a Store in a database.
func NewStore(db DB) Store {
	return Store{keys{db}, settings{db}, backlogs{db}, lists{db}, snapshots{db}}
}

// ExecAudited runs a statement that writes one row, and writes the audit entry, in one transaction. If
// the statement writes no row, it returns the error `notWritten`, and no audit entry is written.
func ExecAudited(ctx context.Context, db DB, entry store.AuditEntry, notWritten error, statement string, args ...any) error {
	return db.InTx(ctx, func(tx store.Tx) error {
		written, err := tx.Exec(ctx, store.Statement{Text: statement, Args: args})
		if err != nil {
			return err
		}
		if written[0] == 0 {
			return notWritten
		}
		return tx.Commit(ctx, store.Statement{Text: store.InsertAudit, Args: entry.AuditArgs()})
	})
}

// Collect returns all rows of a query.
func Collect[T any](ctx context.Context, db Querier, fill func(*T, func(...any) error) error, query string, args ...any) ([]T, error) {
	var all []T
	err := db.Query(ctx, func(scan func(...any) error) error {
		var one T
		err := fill(&one, scan)
		all = append(all, one)
		return err
	}, query, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// ReadRow reads the only row of a query. `found` is false if the result has no row.
func ReadRow(ctx context.Context, db DB, fill func(scan func(...any) error) error, query string, args ...any) (found bool, err error) {
	err = db.Query(ctx, func(scan func(...any) error) error {
		found = true
		return fill(scan)
	}, query, args...)
	return found, err
}

// ReadTime reads a time in microseconds since 1970 UTC; zero if the result has no row.
func ReadTime(ctx context.Context, db DB, query string, args ...any) (time.Time, error) {
	var us int64
	found, err := ReadRow(ctx, db, func(scan func(...any) error) error { return scan(&us) }, query, args...)
	if err != nil || !found {
		return time.Time{}, err
	}
	return time.UnixMicro(us).UTC(), nil
}
