package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// Statements that count due rows, for the console. Each reads an index, and at most as many rows as its
// limit. It returns the number of due rows and the earliest due time in microseconds; both are 0
// without due rows. Arguments: source, time, limit.
const (
	SelectRetryBacklog = `SELECT count(*), coalesce(min(next_retry_at), 0) FROM (
	SELECT next_retry_at FROM update_status WHERE source = $1 AND state = 'RETRYING' AND next_retry_at <= $2 ORDER BY next_retry_at LIMIT $3
) d`
	SelectOutboxBacklog = `SELECT count(*), coalesce(min(due_at), 0) FROM (
	SELECT due_at FROM outbox WHERE source = $1 AND due_at <= $2 ORDER BY due_at LIMIT $3
) d`
)

// backlogs counts due rows.
type backlogs struct{ db DB }

// RetryBacklog counts at most `limit` retries of a source that are due at the given time. A claimed
// retry is due when its claim ends.
func (s backlogs) RetryBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, SelectRetryBacklog, source, at, limit)
}

// OutboxBacklog counts at most `limit` outbox events of a source that are due at the given time.
func (s backlogs) OutboxBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, SelectOutboxBacklog, source, at, limit)
}

func (s backlogs) backlog(ctx context.Context, query, source string, at time.Time, limit int) (b store.Backlog, err error) {
	_, err = ReadRow(ctx, s.db, func(scan func(...any) error) error { return scanBacklog(&b, scan) }, query, source, at.UnixMicro(), limit)
	return b, err
}

// scanBacklog reads the backlog from a row.
func scanBacklog(b *store.Backlog, scan func(...any) error) error {
	var first int64
	if err := scan(&b.Count, &first); err != nil {
		return fmt.Errorf("count due rows: %w", err)
	}
	b.Oldest = store.FromMicros(first)
	return nil
}
