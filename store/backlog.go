package store

import (
	"fmt"
	"time"
)

// Statements that count due rows, for the console. Each reads an index, and at most as many rows
// as its limit. Arguments: source, time, limit.
const (
	// SelectTierBacklogs returns facet, tier, number of due entities, and the first and the last due
	// time in microseconds.
	SelectTierBacklogs = `SELECT facet, tier, count(*), min(due_at), max(due_at) FROM (
	SELECT facet, tier, due_at FROM entities WHERE source = $1 AND enabled AND due_at <= $2 ORDER BY due_at LIMIT $3
) d GROUP BY facet, tier ORDER BY facet, tier`

	// SelectRetryBacklog and SelectOutboxBacklog return the number of due rows and the earliest due
	// time in microseconds; both are 0 without due rows.
	SelectRetryBacklog = `SELECT count(*), coalesce(min(next_retry_at), 0) FROM (
	SELECT next_retry_at FROM update_status WHERE source = $1 AND state = 'RETRYING' AND next_retry_at <= $2 ORDER BY next_retry_at LIMIT $3
) d`
	SelectOutboxBacklog = `SELECT count(*), coalesce(min(due_at), 0) FROM (
	SELECT due_at FROM outbox WHERE source = $1 AND due_at <= $2 ORDER BY due_at LIMIT $3
) d`
)

// Backlog is the number of due rows, at most the limit of the query, and the due time of the
// oldest due row. Both fields are zero without due rows.
type Backlog struct {
	Count  int64
	Oldest time.Time
}

// ScanBacklog reads the backlog from a row.
func (b *Backlog) ScanBacklog(scan func(...any) error) error {
	var first int64
	if err := scan(&b.Count, &first); err != nil {
		return fmt.Errorf("count due rows: %w", err)
	}
	b.Oldest = fromMicros(first)
	return nil
}

// TierBacklog is the number of due entities of one facet and tier. The query counts only the
// entities of the source that are due earliest, up to its limit. Last is the latest due time of
// the counted entities.
type TierBacklog struct {
	Facet string
	Tier  Tier
	Backlog
	Last time.Time
}

// ScanTierBacklog reads the backlog from a row.
func (d *TierBacklog) ScanTierBacklog(scan func(...any) error) error {
	var tier, first, last int64
	if err := scan(&d.Facet, &tier, &d.Count, &first, &last); err != nil {
		return fmt.Errorf("count due entities by tier: %w", err)
	}
	d.Tier, d.Oldest, d.Last = Tier(tier), fromMicros(first), fromMicros(last)
	return nil
}
