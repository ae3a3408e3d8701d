package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/tokens"
)

type (
	sharedStore = shared.Store
	tokenStore  = tokens.Store
)

// runner implements shared.DB and tokens.DB.
type runner struct{ pool *pgxpool.Pool }

// Query calls the function row for each row of the result.
func (d runner) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return readFrom(d.pool)(ctx, row, query, args...)
}

// Exec runs a statement.
func (d runner) Exec(ctx context.Context, statement string, args ...any) (written int64, err error) {
	tag, err := d.pool.Exec(ctx, statement, args...)
	return tag.RowsAffected(), classifyError(err)
}

// ExecAudited implements shared.DB.
func (d runner) ExecAudited(ctx context.Context, entry store.AuditEntry, notWritten error, statement string, args ...any) error {
	return classifyError(pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, statement, args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return notWritten
		}
		_, err = tx.Exec(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	}))
}

// Clock returns PostgreSQL's clock, so that the clocks of the processes do not matter.
func (runner) Clock() string { return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint" }
