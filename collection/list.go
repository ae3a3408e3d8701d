package collection

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// The statements of the console. The first three arguments of selectNewest and selectPrefix are source, facet
// and key.
const (
	listColumns = `item, hash, version, changed_at, deleted, size`
	// selectNewest returns items in the order of their last changes, the newest change first.
	// Arguments: version and id of the last item of the page before, limit.
	selectNewest = `SELECT ` + listColumns + ` FROM items
WHERE source = $1 AND facet = $2 AND key = $3 AND (version, item) < ($4, $5)
ORDER BY version DESC, item DESC LIMIT $6`
	// selectPrefix returns items in the order of their ids. Arguments: id of the last item of the page
	// before, first and last possible id, limit.
	selectPrefix = `SELECT ` + listColumns + ` FROM items
WHERE source = $1 AND facet = $2 AND key = $3 AND item > $4 AND item >= $5 AND item <= $6
ORDER BY item LIMIT $7`
	// selectTotals returns the totals of a source's collections, one row for each facet. Arguments:
	// source, maximum number of collections.
	selectTotals = `SELECT facet, count(*), CAST(sum(items) AS bigint), sum(CASE WHEN complete_at = 0 THEN 1 ELSE 0 END),
	sum(CASE WHEN walk <> 0 THEN 1 ELSE 0 END), COALESCE(min(CASE WHEN walk <> 0 THEN walk_at END), 0)
FROM (SELECT facet, items, complete_at, walk, walk_at FROM collections WHERE source = $1 LIMIT $2) c
GROUP BY facet ORDER BY facet`
)

// Listing selects the items that List returns.
type Listing struct {
	// Prefix selects the ids that begin with this text. With a prefix, the items are sorted by their
	// ids. Without one, they are sorted by their last changes, the newest change first.
	Prefix string
	// AfterVersion and AfterID are the version and the id of the last item of the previous page. Zero
	// values select the first page.
	AfterVersion int64
	AfterID      string
	Limit        int
}

// List returns items of a collection without their content, including deleted ones.
func (c *Collections) List(ctx context.Context, e schemas.Entity, l Listing) (items []Item, err error) {
	query, args := selectPrefix, key(e, l.AfterID, l.Prefix, l.Prefix+"\U0010ffff", l.Limit)
	if l.Prefix == "" {
		after := l.AfterVersion
		if after == 0 {
			after = math.MaxInt64
		}
		query, args = selectNewest, key(e, after, l.AfterID, l.Limit)
	}
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Commit(ctx, store.Statement{Text: query, Args: args, Row: func(scan func(...any) error) error {
			var i Item
			var hash []byte
			var changed int64
			err := scan(&i.ID, &hash, &i.Version, &changed, &i.Deleted, &i.Size)
			copy(i.Hash[:], hash)
			i.ChangedAt = store.FromMicros(changed)
			items = append(items, i)
			return err
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("list items of %s: %w", e, err)
	}
	return items, nil
}

// Totals describes the collections of a facet.
type Totals struct {
	Facet       string
	Collections int64
	Items       int64
	Incomplete  int64 // collections whose first walk is not complete
	Walks       int64 // number of open walks
	// OldestWalk is the start of the oldest open walk; zero means that no walk is open.
	OldestWalk time.Time
}

// Totals returns totals of the collections of a source by facet. It counts at most the given number of
// collections.
func (c *Collections) Totals(ctx context.Context, source string, most int) (all []Totals, err error) {
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Commit(ctx, store.Statement{Text: selectTotals, Args: []any{source, most}, Row: func(scan func(...any) error) error {
			var t Totals
			var oldest int64
			err := scan(&t.Facet, &t.Collections, &t.Items, &t.Incomplete, &t.Walks, &oldest)
			t.OldestWalk = store.FromMicros(oldest)
			all = append(all, t)
			return err
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("count the collections of %s: %w", source, err)
	}
	return all, nil
}
