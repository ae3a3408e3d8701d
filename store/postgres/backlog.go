package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
)

// TierBacklogs counts the due entities of a source by facet and tier. It counts at most `limit`
// entities, beginning with the earliest due time. Facets and tiers without due entities are left out.
func (s *Store) TierBacklogs(ctx context.Context, source string, now time.Time, limit int) ([]store.TierBacklog, error) {
	rows, err := s.pool.Query(ctx, store.SelectTierBacklogs, source, now.UnixMicro(), limit)
	if err != nil {
		return nil, fmt.Errorf("count due rows of %s: %w", source, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d store.TierBacklog, err error) {
		return d, d.ScanTierBacklog(row.Scan)
	})
	if err != nil {
		return nil, fmt.Errorf("count due rows of %s: %w", source, err)
	}
	return all, nil
}

// RetryBacklog counts at most `limit` retries of a source that are due at the given time. A claimed
// retry is due when its claim ends.
func (s *Store) RetryBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectRetryBacklog, source, at, limit)
}

// OutboxBacklog counts at most `limit` outbox events of a source that are due at the given time.
func (s *Store) OutboxBacklog(ctx context.Context, source string, at time.Time, limit int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectOutboxBacklog, source, at, limit)
}

func (s *Store) backlog(ctx context.Context, query, source string, at time.Time, limit int) (b store.Backlog, err error) {
	return b, b.ScanBacklog(s.pool.QueryRow(ctx, query, source, at.UnixMicro(), limit).Scan)
}
