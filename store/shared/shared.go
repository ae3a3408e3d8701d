// Package shared has the operations of the store that are the same statements in both databases: one
// statement, or one statement and its audit entry. The databases embed Store, and implement DB with
// their drivers.
package shared

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// DB runs statements in a database.
type DB interface {
	// Query calls the function row for each row of the result.
	Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error
	// Exec runs a statement. It returns the number of rows that the statement has written.
	Exec(ctx context.Context, statement string, args ...any) (written int64, err error)
	// ExecAudited runs a statement that writes one row, and writes the audit entry, in one transaction.
	// If the statement writes no row, it returns the error `notWritten`, and no audit entry is written.
	ExecAudited(ctx context.Context, entry store.AuditEntry, notWritten error, statement string, args ...any) error
}

// Store has the shared operations of a database's store.
type Store struct {
	deadLetters
	claims
	keys
	settings
	backlogs
	lists
}

// NewStore returns a Store in a database.
func NewStore(db DB) Store {
	return Store{deadLetters{db}, claims{db}, keys{db}, settings{db}, backlogs{db}, lists{db}}
}

// collect returns all rows of a query.
func collect[T any](ctx context.Context, db DB, fill func(*T, func(...any) error) error, query string, args ...any) ([]T, error) {
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

// readRow reads the only row of a query. `found` is false if the result has no row.
func readRow(ctx context.Context, db DB, fill func(scan func(...any) error) error, query string, args ...any) (found bool, err error) {
	err = db.Query(ctx, func(scan func(...any) error) error {
		found = true
		return fill(scan)
	}, query, args...)
	return found, err
}

// readTime reads a time in microseconds since 1970 UTC; zero if the result has no row.
func readTime(ctx context.Context, db DB, query string, args ...any) (time.Time, error) {
	var us int64
	found, err := readRow(ctx, db, func(scan func(...any) error) error { return scan(&us) }, query, args...)
	if err != nil || !found {
		return time.Time{}, err
	}
	return time.UnixMicro(us).UTC(), nil
}
