package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/freshet/freshet/store"
)

// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
func (s *Store) InTx(ctx context.Context, do func(store.Tx) error) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return do(transaction{tx}) })
}

// transaction implements store.Tx.
type transaction struct{ *sql.Tx }

// Query calls the function row for each row of the result.
func (t transaction) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return eachRow(ctx, t.Tx, row, query, args...)
}

// eachRow runs a query and calls the function row for each row of the result.
func eachRow(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, row func(scan func(...any) error) error, query string, args ...any,
) (err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Exec runs statements one after another.
func (t transaction) Exec(ctx context.Context, statements ...store.Statement) (written []int64, err error) {
	written = make([]int64, len(statements))
	for i, s := range statements {
		result, err := t.ExecContext(ctx, s.Text, s.Args...)
		if err == nil {
			written[i], err = result.RowsAffected()
		}
		if err != nil {
			return nil, err
		}
	}
	return written, nil
}
