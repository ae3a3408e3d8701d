package collection

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Listed is a stored collection, without its items.
type Listed struct {
	Key        string
	Visibility string
	Complete   bool // a walk has read the whole list
}

const (
	selectStored = `SELECT c.key, c.visibility, c.complete_at <> 0 FROM collections c`
	// selectContents returns the contents of items that are not deleted, in the order of their last
	// changes. This is nearly the physical order of their rows. Arguments: version and id of the item
	// before the first one, limit.
	selectContents = `SELECT version, item, encoding, payload FROM items
WHERE source = $1 AND facet = $2 AND key = $3 AND (version, item) > ($4, $5) AND NOT deleted ORDER BY version, item LIMIT $6`
)

// InKeyOrder returns at most `limit` collections of the filter's source and facet, sorted by their
// keys. Only collections are returned whose keys begin with f.KeyPrefix and are greater than the key
// `after`.
func (c *Collections) InKeyOrder(ctx context.Context, f store.KeyRange, after string, limit int) (all []Listed, err error) {
	query, args := f.InKeyOrder(selectStored, "c", after, limit)
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Query(ctx, func(scan func(...any) error) error {
			var s Listed
			err := scan(&s.Key, &s.Visibility, &s.Complete)
			all = append(all, s)
			return err
		}, query, args...)
	})
	if err != nil {
		return nil, fmt.Errorf("list the collections of %s/%s: %w", f.Source, f.Facet, err)
	}
	return all, nil
}

// Position is the position of an item in a scan; the zero value is before the first item.
type Position struct {
	Version int64
	ID      string
}

// Scan reads at most `limit` items after the position `after`, in the order of their last changes, and
// calls the function `each` for each of them. Deleted items are left out. An item that changes between
// two scans moves to the end, so a later scan can return it again. The content is valid only until
// `each` returns, because only one item is in memory.
func (c *Collections) Scan(ctx context.Context, e schemas.Entity, after Position, limit int, each func(at Position, content []byte)) error {
	var content []byte
	stored := store.Snapshot{State: store.State{Entity: e}}
	err := c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Query(ctx, func(scan func(...any) error) error {
			var at Position
			err := scan(&at.Version, &at.ID, &stored.Encoding, &stored.Payload)
			if err == nil {
				content, err = stored.Decode(content[:0])
			}
			if err == nil {
				each(at, content)
			}
			return err
		}, selectContents, key(e, after.Version, after.ID, limit)...)
	})
	if err != nil {
		return fmt.Errorf("scan items of %s: %w", e, err)
	}
	return nil
}
