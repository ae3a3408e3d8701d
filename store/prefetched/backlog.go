package prefetched

import (
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// SelectTierBacklogs returns facet, tier, number of due entities, and the first and the last due time in
// microseconds. It reads an index, and at most as many rows as its limit. Arguments: source, time,
// limit.
const SelectTierBacklogs = `SELECT facet, tier, count(*), min(due_at), max(due_at) FROM (
	SELECT facet, tier, due_at FROM entities WHERE source = $1 AND enabled AND due_at <= $2 ORDER BY due_at LIMIT $3
) d GROUP BY facet, tier ORDER BY facet, tier`

// TierBacklog is the number of due entities of one facet and tier. The query counts only the
// entities of the source that are due earliest, up to its limit. Last is the latest due time of
// the counted entities.
type TierBacklog struct {
	Facet string
	Tier  Tier
	store.Backlog
	Last time.Time
}

// ScanTierBacklog reads the backlog from a row.
func (d *TierBacklog) ScanTierBacklog(scan func(...any) error) error {
	var tier, first, last int64
	if err := scan(&d.Facet, &tier, &d.Count, &first, &last); err != nil {
		return fmt.Errorf("count due entities by tier: %w", err)
	}
	d.Tier, d.Oldest, d.Last = Tier(tier), store.FromMicros(first), store.FromMicros(last)
	return nil
}
