package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/store"
)

// transactions implements InTx and InUnflushedTx, and runs the constant statements that read or write
// entities by their keys. If prepare is set, each connection prepares each of these statements once,
// because PostgreSQL needs more time to parse and plan them than to execute them.
type transactions struct {
	pool    *pgxpool.Pool
	prepare bool // each connection has its own session of PostgreSQL, and not one of a pooler
}

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

// genericPlans makes PostgreSQL execute a prepared statement with one generic plan for all arguments.
// Otherwise PostgreSQL would plan a statement about a partitioned table at each execution, because it
// estimates a lower cost for a plan of one partition. This planning takes longer than the execution.
const genericPlans = ", set_config('plan_cache_mode', 'force_generic_plan', true)"

// read runs a query outside of a transaction and calls the function row for each row of the result.
func (s transactions) read(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	if !s.prepare {
		return readFrom(s.pool)(ctx, row, query, args...)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	// PostgreSQL executes the statements of one round trip as one transaction, so the settings need no BEGIN.
	t := &transaction{conn: conn.Conn(), prepare: true, begin: []string{beginIndexOnly[1] + genericPlans}}
	return t.Query(ctx, row, query, args...)
}

// beginOptions are the options of a transaction whose statements are run with prepared.
func (s transactions) beginOptions() pgx.TxOptions {
	if !s.prepare {
		return indexOnly
	}
	return pgx.TxOptions{BeginQuery: indexOnly.BeginQuery + genericPlans}
}

// prepared returns a transaction that prepares its statements.
func (s transactions) prepared(tx pgx.Tx) prepared {
	if !s.prepare {
		return prepared{tx, pgx.QueryExecModeCacheDescribe}
	}
	return prepared{tx, pgx.QueryExecModeCacheStatement}
}

// prepared runs statements of a transaction in a mode.
type prepared struct {
	tx   pgx.Tx
	mode pgx.QueryExecMode
}

// Query runs a statement that returns rows.
func (p prepared) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return p.tx.Query(ctx, sql, append([]any{p.mode}, args...)...)
}

// exec runs a statement that returns no rows.
func (p prepared) exec(ctx context.Context, sql string, args ...any) error {
	_, err := p.tx.Exec(ctx, sql, append([]any{p.mode}, args...)...)
	return err
}

func (s transactions) inTx(ctx context.Context, begin []string, do func(store.Tx) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes a connection whose transaction has not ended
	tx := &transaction{conn: conn.Conn(), prepare: s.prepare, begin: begin}
	if s.prepare {
		tx.begin = []string{begin[0], begin[1] + genericPlans}
	}
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
	prepare   bool
	begin     []string // statements that begin the transaction; nil means that they were sent
	committed bool     // the commit was sent and has succeeded
}

// send sends the statements of a batch in one round trip. In the first call, the statements that begin
// the transaction are sent with them.
func (t *transaction) send(ctx context.Context, statements *pgx.Batch) error {
	b := &pgx.Batch{}
	for _, text := range t.begin {
		b.Queue(text)
	}
	t.begin = nil
	b.QueuedQueries = append(b.QueuedQueries, statements.QueuedQueries...)
	if t.prepare {
		for _, q := range b.QueuedQueries {
			if _, err := t.conn.Prepare(ctx, q.SQL, q.SQL); err != nil { // Prepare sends nothing if this connection has prepared the statement before
				return err
			}
		}
	}
	return t.conn.SendBatch(ctx, b).Close()
}

// Query calls the function row for each row of the result.
func (t *transaction) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	_, err := t.Exec(ctx, store.Statement{Text: query, Args: args, Row: row})
	return err
}

func callRow(rows pgx.Rows, row func(scan func(...any) error) error) error {
	defer rows.Close()
	scan := rows.Scan
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Exec runs statements in one round trip.
func (t *transaction) Exec(ctx context.Context, statements ...store.Statement) (written []int64, err error) {
	written = make([]int64, len(statements))
	return written, t.send(ctx, batchOf(statements, written))
}

// batchOf returns a batch of the statements. When the batch is executed, it stores in written how many
// rows each statement has written.
func batchOf(statements []store.Statement, written []int64) *pgx.Batch {
	b := &pgx.Batch{}
	for i, s := range statements {
		q := b.Queue(s.Text, s.Args...)
		if s.Row != nil {
			q.Query(func(rows pgx.Rows) error { return callRow(rows, s.Row) })
			continue
		}
		q.Exec(func(tag pgconn.CommandTag) error {
			written[i] = tag.RowsAffected()
			return nil
		})
	}
	return b
}

// Commit runs statements and commits in one round trip.
func (t *transaction) Commit(ctx context.Context, statements ...store.Statement) error {
	if t.begin != nil && len(statements) == 0 {
		return nil // the transaction has not begun, so there is nothing to commit
	}
	b := batchOf(statements, make([]int64, len(statements)))
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		t.committed = true
		return nil
	})
	return t.send(ctx, b)
}
