package sqlite

import (
	"context"
	"strconv"
	"time"

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
	return eachRow(ctx, d.db, row, query, args...)
}

// Exec runs a statement.
func (d runner) Exec(ctx context.Context, statement string, args ...any) (written int64, err error) {
	result, err := d.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Clock returns the clock of this process: SQLite runs in the process.
func (runner) Clock() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }
