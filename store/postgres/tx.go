package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/store"
)

// transactions implements InTx and InUnflushedTx.
type transactions struct{ pool *pgxpool.Pool }

// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
// After an error of the commit, the transaction may be committed or not.
func (s transactions) InTx(ctx context.Context, do func(store.Tx) error) error {
	return classifyError(s.inTx(ctx, beginIndexOnly, do))
}

// InUnflushedTx is like InTx, but does not wait until the commit is on disk. If PostgreSQL crashes, the
// last of these transactions are lost, each as a whole.
func (s transactions) InUnflushedTx(ctx context.Context, do func(store.Tx) error) error {
	return classifyError(s.inTx(ctx, beginUnflushed, do))
}

var beginUnflushed = []string{"BEGIN", beginIndexOnly[1] + ", set_config('synchronous_commit', 'off', true)"}

func (s transactions) inTx(ctx context.Context, begin []string, do func(store.Tx) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes a connection whose transaction has not ended
	tx := &transaction{conn: conn.Conn(), begin: begin}
	if err = do(tx); err == nil && !tx.committed {
		err = tx.Commit(ctx)
	}
	if err != nil && !tx.committed {
		_, _ = conn.Exec(ctx, "ROLLBACK") // after an error of it, Release closes the connection
	}
	return err
}

// transaction implements store.Tx. Its first call sends the statements that begin the transaction too,
// so that they need no round trip.
type transaction struct {
	conn      *pgx.Conn
	begin     []string // statements that begin the transaction; nil: they were sent
	committed bool     // the commit was sent and has succeeded
}

// batch returns a batch with the statements that begin the transaction, if it has not begun.
func (t *transaction) batch() *pgx.Batch {
	b := &pgx.Batch{}
	for _, text := range t.begin {
		b.Queue(text)
	}
	t.begin = nil
	return b
}

// Query calls the function row for each row of the result.
func (t *transaction) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	b := t.batch()
	b.Queue(query, args...).Query(func(rows pgx.Rows) error { return callRow(rows, row) })
	return t.conn.SendBatch(ctx, b).Close()
}

// eachRow runs a query and calls the function row for each row of the result.
func eachRow(ctx context.Context, pool *pgxpool.Pool, row func(scan func(...any) error) error, query string, args ...any) error {
	rows, err := pool.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	return callRow(rows, row)
}

func callRow(rows pgx.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Exec runs statements in one round trip.
func (t *transaction) Exec(ctx context.Context, statements ...store.Statement) (written []int64, err error) {
	b := t.batch()
	written = make([]int64, len(statements))
	for i, s := range statements {
		b.Queue(s.Text, s.Args...).Exec(func(tag pgconn.CommandTag) error {
			written[i] = tag.RowsAffected()
			return nil
		})
	}
	return written, t.conn.SendBatch(ctx, b).Close()
}

// Commit runs statements and commits in one round trip.
func (t *transaction) Commit(ctx context.Context, statements ...store.Statement) error {
	if t.begin != nil && len(statements) == 0 {
		return nil // nothing was done
	}
	b := t.batch()
	for _, s := range statements {
		b.Queue(s.Text, s.Args...)
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		t.committed = true
		return nil
	})
	return t.conn.SendBatch(ctx, b).Close()
}
