package sqlite

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/tokens"
)

type (
	sharedStore = shared.Store
	tokenStore  = tokens.Store
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

// wroteRow reports whether a statement wrote a row.
func wroteRow(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// ExecAudited implements shared.DB.
func (d runner) ExecAudited(ctx context.Context, entry store.AuditEntry, notWritten error, statement string, args ...any) error {
	return d.inTx(ctx, func(tx *sql.Tx) error {
		wrote, err := wroteRow(tx.ExecContext(ctx, statement, args...))
		if err != nil {
			return err
		}
		if !wrote {
			return notWritten
		}
		_, err = tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	})
}

// Clock returns the clock of this process: SQLite runs in the process.
func (runner) Clock() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }
