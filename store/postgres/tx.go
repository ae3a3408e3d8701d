package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/freshet/freshet/store"
)

// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
// After an error of the commit, the transaction may be committed or not.
func (s *Store) InTx(ctx context.Context, do func(store.Tx) error) error {
	return classifyError(pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error { return do(transaction{tx}) }))
}

// transaction implements store.Tx.
type transaction struct{ pgx.Tx }

// Query calls the function row for each row of the result.
func (t transaction) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return eachRow(ctx, t.Tx, row, query, args...)
}

// eachRow runs a query and calls the function row for each row of the result.
func eachRow(ctx context.Context, db interface {
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}, row func(scan func(...any) error) error, query string, args ...any,
) error {
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Exec runs statements in one round trip.
func (t transaction) Exec(ctx context.Context, statements ...store.Statement) (written []int64, err error) {
	written = make([]int64, len(statements))
	var b pgx.Batch
	for i, s := range statements {
		b.Queue(s.Text, s.Args...).Exec(func(tag pgconn.CommandTag) error {
			written[i] = tag.RowsAffected()
			return nil
		})
	}
	return written, t.SendBatch(ctx, &b).Close()
}
