package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/freshet/freshet/store/tokens"
)

type tokenStore = tokens.Store

// tokenDB implements tokens.DB.
type tokenDB struct{ db *sql.DB }

// Query calls the function row for each row of the result.
func (d tokenDB) Query(ctx context.Context, row func(scan func(...any) error) error, query string, args ...any) error {
	return eachRow(ctx, d.db, row, query, args...)
}

// Exec runs a statement.
func (d tokenDB) Exec(ctx context.Context, statement string, args ...any) (written int64, err error) {
	result, err := d.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Clock returns the clock of this process: SQLite runs in the process.
func (tokenDB) Clock() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }
