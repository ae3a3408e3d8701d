package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/store"
)

// transactions implements InTx and InUnflushedTx.
type transactions struct{ db *sql.DB }

// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
func (s transactions) InTx(ctx context.Context, do func(store.Tx) error) error {
	return s.inTx(ctx, func(tx *sql.Tx) error { return do(transaction{tx}) })
}

// InUnflushedTx is InTx, because a flush adds little to the duration of a transaction of SQLite.
func (s transactions) InUnflushedTx(ctx context.Context, do func(store.Tx) error) error {
	return s.InTx(ctx, do)
}

func (s transactions) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	ended := false
	defer func() {
		if !ended { // the function do panicked: the only connection must not stay in the transaction
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
		if s.Row != nil {
			if err := eachRow(ctx, t.Tx, s.Row, s.Text, s.Args...); err != nil {
				return nil, err
			}
			continue
		}
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

// Commit runs statements one after another. InTx commits.
func (t transaction) Commit(ctx context.Context, statements ...store.Statement) error {
	_, err := t.Exec(ctx, statements...)
	return err
}
