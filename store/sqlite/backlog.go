package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// TierBacklogs returns of the entities of a source that are due first, most of them at most,
// how many are of which facet and tier, in their order; those of which none is due are left
// out.
func (s *Store) TierBacklogs(ctx context.Context, source string, now time.Time, most int) (all []store.TierBacklog, err error) {
	rows, err := s.db.QueryContext(ctx, store.SelectTierBacklogs, source, now.UnixMicro(), most)
	if err != nil {
		return nil, fmt.Errorf("count what is due of %s: %w", source, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var d store.TierBacklog
		if err := d.ScanTierBacklog(rows.Scan); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, rows.Err()
}

// RetryBacklog counts the retries of a source that are due by then, most of them at most. One
// that somebody has claimed is due when the claim ends.
func (s *Store) RetryBacklog(ctx context.Context, source string, by time.Time, most int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectRetryBacklog, source, by, most)
}

// OutboxBacklog counts likewise what is to follow from changes of a source.
func (s *Store) OutboxBacklog(ctx context.Context, source string, by time.Time, most int) (store.Backlog, error) {
	return s.backlog(ctx, store.SelectOutboxBacklog, source, by, most)
}

func (s *Store) backlog(ctx context.Context, query, source string, by time.Time, most int) (b store.Backlog, err error) {
	return b, b.ScanBacklog(s.db.QueryRowContext(ctx, query, source, by.UnixMicro(), most).Scan)
}
