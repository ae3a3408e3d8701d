package store

import "context"

// Tx is a transaction of either database. It is for rules that need several statements, such as the
// rules of package credits: they are written once, and run in both databases.
type Tx interface {
	// Query calls the function row for each row of the result.
	Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error
	// Exec runs statements in their order, in PostgreSQL in one round trip. It returns the number of
	// rows that each statement has written. A statement sees the rows that were committed while an
	// earlier statement waited for a lock.
	Exec(ctx context.Context, statements ...Statement) (written []int64, err error)
	// Commit runs statements in their order and commits, in PostgreSQL in one round trip. No method may
	// be called after it.
	Commit(ctx context.Context, statements ...Statement) error
}

// Statement is the text of a statement with its arguments.
type Statement struct {
	Text string
	Args []any
	// Row is called for each row of the result; nil means that the statement returns no rows.
	Row func(scan func(...any) error) error
}
