package collection

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Store runs transactions in a database.
type Store interface {
	// InTx calls the function do in a transaction. It commits if do returns nil, and rolls back otherwise.
	InTx(ctx context.Context, do func(store.Tx) error) error
}

// Collections reads and writes collections. Its methods may be called concurrently.
type Collections struct{ store Store }

// New returns the Collections of a database.
func New(s Store) *Collections { return &Collections{s} }

// State returns the state of a collection; the zero value if nothing is stored.
func (c *Collections) State(ctx context.Context, e schemas.Entity) (State, error) {
	states, err := c.States(ctx, []schemas.Entity{e})
	if err != nil {
		return State{}, err
	}
	return states[0], nil
}

// States returns the states of collections in the given order; the zero value if nothing is stored.
func (c *Collections) States(ctx context.Context, all []schemas.Entity) (states []State, err error) {
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		states = make([]State, len(all))
		reads := make([]store.Statement, len(all))
		for n, e := range all {
			reads[n] = store.Statement{Text: selectState, Args: key(e), Row: states[n].scan}
		}
		return tx.Commit(ctx, reads...)
	})
	if err != nil {
		return nil, fmt.Errorf("read %d collections: %w", len(all), err)
	}
	return states, nil
}

// Range selects items of a collection in the order of their changes: by version, then by id.
type Range struct {
	// ID selects one item that is not deleted; empty means all items.
	ID string
	// AfterVersion and AfterID are the version and the id of the last item before the range. Zero
	// values: the range begins with the first item.
	AfterVersion int64
	AfterID      string
	// ChangedSince selects the items that have changed at this time or later; zero means all items.
	ChangedSince time.Time
	// WithDeleted is true if the range includes deleted items.
	WithDeleted bool
	Limit       int
}

// Items returns the items of a range.
func (c *Collections) Items(ctx context.Context, e schemas.Entity, r Range) (items []Item, err error) {
	query, args := selectItems, key(e, r.AfterVersion, r.AfterID, store.ToMicros(r.ChangedSince), r.WithDeleted, r.Limit)
	if r.ID != "" {
		query, args = selectItem, key(e, r.ID)
	}
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Commit(ctx, store.Statement{Text: query, Args: args, Row: func(scan func(...any) error) error {
			var i Item
			err := i.scan(e, scan)
			items = append(items, i)
			return err
		}})
	})
	if err != nil {
		return nil, fmt.Errorf("read items of %s: %w", e, err)
	}
	return items, nil
}

// WalkAgain makes sure that another walk follows the open walk of each of the collections. It is called
// when the upstream has announced a change, because an open walk may miss this change. It has no effect
// on a collection without an open walk. Each collection has its own transaction, because the transactions that
// store pages do not lock the rows of collections in one order.
func (c *Collections) WalkAgain(ctx context.Context, of []schemas.Entity) error {
	for _, e := range of {
		err := c.store.InTx(ctx, func(tx store.Tx) error { return tx.Commit(ctx, store.Statement{Text: walkAgain, Args: key(e)}) })
		if err != nil {
			return fmt.Errorf("request another walk of %s: %w", e, err)
		}
	}
	return nil
}

// Abandon closes the walk with this id if it is open. If no walk is open then, it also deletes the
// outbox event that requests a page. Stored items and the cursor are kept. The next walk begins with
// the first page.
func (c *Collections) Abandon(ctx context.Context, e schemas.Entity, walk int64) error {
	err := c.store.InTx(ctx, func(tx store.Tx) error {
		return tx.Commit(ctx, store.Statement{Text: abandonWalk, Args: key(e, walk)}, store.Statement{Text: deleteLeftRequest, Args: key(e)})
	})
	if err != nil {
		return fmt.Errorf("abandon the walk of %s: %w", e, err)
	}
	return nil
}
