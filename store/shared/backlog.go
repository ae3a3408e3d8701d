package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// backlogs counts due rows.
type backlogs struct{ db DB }

// TierBacklogs counts the due entities of a source by facet and tier. It counts at most `limit`
// entities, beginning with the earliest due time. Facets and tiers without due entities are left out.
func (s backlogs) TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]store.TierBacklog, error) {
	all, err := collect(ctx, s.db, (*store.TierBacklog).ScanTierBacklog, store.SelectTierBacklogs, source, now.UnixMicro(), limit)
	if err != nil {
		return nil, fmt.Errorf("count due rows of %s: %w", source, err)
	}
	return all, nil
}

// RetryBacklog counts at most `limit` retries of a source that are due at the given time. A claimed
// retry is due when its claim ends.
func (s backlogs) RetryBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectRetryBacklog, source, at, limit)
}

// OutboxBacklog counts at most `limit` outbox events of a source that are due at the given time.
func (s backlogs) OutboxBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectOutboxBacklog, source, at, limit)
}

func (s backlogs) backlog(ctx context.Context, query, source string, at time.Time, limit int) (b store.Backlog, err error) {
	_, err = readRow(ctx, s.db, b.ScanBacklog, query, source, at.UnixMicro(), limit)
	return b, err
}
