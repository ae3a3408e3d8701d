package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/freshet/freshet/store/tokens"
)

type tokenStore = tokens.Store

// tokenDB implements tokens.DB.
type tokenDB struct{ pool *pgxpool.Pool }

// Query calls the function row for each row of the result.
func (d tokenDB) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return readFrom(d.pool)(ctx, row, query, args...)
}

// Exec runs a statement.
func (d tokenDB) Exec(ctx context.Context, statement string, args ...any) (written int64, err error) {
	tag, err := d.pool.Exec(ctx, statement, args...)
	return tag.RowsAffected(), classifyError(err)
}

// Clock returns PostgreSQL's clock, so that the clocks of the processes do not matter.
func (tokenDB) Clock() string { return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint" }
