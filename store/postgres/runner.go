package postgres

import (
	"context"

	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/tokens"
)

type (
	sharedStore = shared.Store
	tokenStore  = tokens.Store
	dlqStore    = deadletters.Store

	// prefetchedStore has the operations on prefetched entities and claims.
	prefetchedStore struct {
		transactions
		prefetched.Store
	}
	// retentionStore deletes expired rows.
	retentionStore struct{ transactions }
)

// runner implements shared.DB and tokens.DB.
type runner struct{ transactions }

// Query calls the function row for each row of the result.
func (d runner) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return readFrom(d.pool)(ctx, row, query, args...)
}

// Exec runs a statement.
func (d runner) Exec(ctx context.Context, statement string, args ...any) (written int64, err error) {
	tag, err := d.pool.Exec(ctx, statement, args...)
	return tag.RowsAffected(), classifyError(err)
}

// Clock returns PostgreSQL's clock, so that the clocks of the processes do not matter.
func (runner) Clock() string { return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint" }
