package store

import (
	"fmt"
	"time"
)

// The queries about what is due, for people who look at it. Each goes through an index,
// and looks at so many rows at most as its last argument says, whatever there are.
const (
	// SelectTierBacklogs takes the source, the time and the greatest number of rows. It returns
	// facet, tier, how many are due, and microseconds of the first and of the last.
	SelectTierBacklogs = `SELECT facet, tier, count(*), min(due_at), max(due_at) FROM (
	SELECT facet, tier, due_at FROM entities WHERE source = $1 AND enabled AND due_at <= $2 ORDER BY due_at LIMIT $3
) d GROUP BY facet, tier ORDER BY facet, tier`

	// SelectRetryBacklog and SelectEffectBacklog take the same, and return how many, and
	// microseconds of the first, or 0.
	SelectRetryBacklog = `SELECT count(*), coalesce(min(next_retry_at), 0) FROM (
	SELECT next_retry_at FROM update_status WHERE source = $1 AND state = 'RETRYING' AND next_retry_at <= $2 ORDER BY next_retry_at LIMIT $3
) d`
	SelectOutboxBacklog = `SELECT count(*), coalesce(min(due_at), 0) FROM (
	SELECT due_at FROM outbox WHERE source = $1 AND due_at <= $2 ORDER BY due_at LIMIT $3
) d`
)

// Backlog is how many are due, as far as they were counted, and since when the first is;
// zero if none is.
type Backlog struct {
	Count  int64
	Oldest time.Time
}

// ScanBacklog fills it by scan, which is a row's Scan.
func (b *Backlog) ScanBacklog(scan func(...any) error) error {
	var first int64
	if err := scan(&b.Count, &first); err != nil {
		return fmt.Errorf("count what is due: %w", err)
	}
	b.Oldest = fromMicros(first)
	return nil
}

// TierBacklog is what is due of one tier of a facet. Of the entities that are due first so
// many were counted; Last is when the last of those is due that are of this tier.
type TierBacklog struct {
	Facet string
	Tier  Tier
	Backlog
	Last time.Time
}

// ScanTierBacklog fills it by scan, which is a row's Scan.
func (d *TierBacklog) ScanTierBacklog(scan func(...any) error) error {
	var tier, first, last int64
	if err := scan(&d.Facet, &tier, &d.Count, &first, &last); err != nil {
		return fmt.Errorf("count the tiers that are due: %w", err)
	}
	d.Tier, d.Oldest, d.Last = Tier(tier), fromMicros(first), fromMicros(last)
	return nil
}
