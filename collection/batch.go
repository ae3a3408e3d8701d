package collection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Write is a fetched page with the state that its worker has read.
type Write struct {
	Entity schemas.Entity
	Rules  Rules
	// Before is the state of the collection before the page, as State.Begin returned it. After is the
	// state after the page, as State.After returned it.
	Before, After State
	Page          Page
	// Manual is true if a reader or an operator requested the fetch of the page (store.State.Manual).
	Manual bool
	// Params are the params of the update request that fetches the next page.
	Params map[string]string
	// Step is set if the page belongs to a run. This statement moves the run's step, and is executed
	// before the page is stored. If it writes no row, the step has ended: then nothing of the page is
	// stored, and the result is Moved. The poller of runs, and not the outbox, requests the next page
	// of such a walk.
	Step *store.Statement
	// Outbox has the events to store if the page changes the collection. With PublishChange, an event
	// is stored for each changed item too.
	Outbox store.OutboxEvents
}

// Encode compresses the items of a page of the collection's first walk, because most of them are new. It
// is optional: Collections.Write compresses the other items that it stores. A worker writes one batch
// at a time, but can call Encode for many pages at a time.
func (w *Write) Encode() {
	if !w.Before.CompleteAt.IsZero() {
		return
	}
	for n := range w.Page.Items {
		w.Page.Items[n].payload = store.Encode(w.Page.Items[n].Content)
	}
}

// Written says what storing one page of a list has changed in the database.
type Written struct {
	Result Result
	State  State // the state of the collection that was stored
	// Changed is the number of new and changed items. Deleted is the number of deleted items, and Expired of items
	// deleted because of Rules.Keep or Rules.MaxItems.
	Changed, Deleted, Expired int64
	// Refused is the error that wraps ErrShrunk if the page was refused. Nothing of a refused page is
	// stored.
	Refused error
}

// Write stores pages in one transaction. For each page it stores the changed items, the collection's
// state and snapshot, the events of the changes, and the request of the next page. It returns the
// result of each page, in the order of the pages. If Write returns an error, nothing was stored.
func (c *Collections) Write(ctx context.Context, pages []Write) (results []Written, err error) {
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		results = make([]Written, len(pages))
		return newBatch(tx, pages, results).run(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("write %d pages: %w", len(pages), err)
	}
	return results, nil
}

// batch is a transaction that stores pages, at most one of each collection. The pages are in the order of
// their entities. Concurrent batches lock their rows in this order, which prevents deadlocks.
type batch struct {
	tx    store.Tx
	pages []*write
}

// newBatch returns the batch of the pages. If several pages belong to one collection, the batch contains
// only the page with the highest version. The result of the other pages is Moved.
func newBatch(tx store.Tx, pages []Write, results []Written) *batch {
	order := make([]int, len(pages))
	for n := range order {
		order[n] = n
	}
	slices.SortFunc(order, func(x, y int) int {
		a, b := pages[x], pages[y]
		return cmp.Or(strings.Compare(a.Entity.Source, b.Entity.Source), strings.Compare(a.Entity.Facet, b.Entity.Facet),
			strings.Compare(a.Entity.Key, b.Entity.Key), cmp.Compare(b.Page.Version, a.Page.Version))
	})
	b := &batch{tx: tx}
	for n, i := range order {
		if n > 0 && pages[order[n-1]].Entity == pages[i].Entity {
			results[i].Result = Moved
			continue
		}
		b.pages = append(b.pages, newWrite(tx, pages[i], &results[i]))
	}
	return b
}

func (b *batch) run(ctx context.Context) error {
	var rows [][]any
	for _, w := range b.pages {
		rows = append(rows, key(w.Entity, -1, []byte{}, 0, "", 0, 0, 0, 0, false, "", ""))
	}
	reads := lockStates.of(rows)
	for _, w := range b.pages {
		reads = append(reads, w.reads()...)
	}
	if _, err := b.tx.Exec(ctx, reads...); err != nil {
		return err
	}
	if err := b.each(func(w *write) error { return w.writeItems(ctx) }); err != nil {
		return err
	}
	if err := b.moveSteps(ctx); err != nil {
		return err
	}
	if err := b.each(func(w *write) error { return w.writeState(ctx) }); err != nil {
		return err
	}
	var all changes
	for _, w := range b.pages {
		all.append(w.changes)
	}
	return b.tx.Commit(ctx, all.flush()...)
}

// each calls f for each page of the batch, except pages that have ended. If f returns ErrShrunk, the
// page is refused, and each continues with the next page.
func (b *batch) each(f func(*write) error) error {
	for _, w := range b.pages {
		if w.ended {
			continue
		}
		if err := f(w); errors.Is(err, ErrShrunk) {
			w.end(Written{Refused: err})
		} else if err != nil {
			return fmt.Errorf("page %d of %s: %w", w.Before.Walk.Page, w.Entity, err)
		}
	}
	return nil
}

// moveSteps executes the statements Write.Step of the pages. It must run before the first write of a
// row of these pages.
func (b *batch) moveSteps(ctx context.Context) error {
	var pages []*write
	var steps []store.Statement
	for _, w := range b.pages {
		if !w.ended && w.Step != nil {
			pages, steps = append(pages, w), append(steps, *w.Step)
		}
	}
	if len(steps) == 0 {
		return nil
	}
	written, err := b.tx.Exec(ctx, steps...)
	if err != nil {
		return err
	}
	for n, w := range pages {
		if written[n] == 0 {
			w.end(Written{Result: Moved})
		}
	}
	return nil
}

// changes are statements that wait for their execution.
type changes struct {
	statements []store.Statement
	rows       [tables][][]any // rows to insert, by the number of the table
}

// insert adds a row to a table. `values` are the columns after source, facet and key.
func (c *changes) insert(table int, e schemas.Entity, values ...any) {
	c.rows[table] = append(c.rows[table], key(e, values...))
}

func (c *changes) append(more changes) {
	c.statements = append(c.statements, more.statements...)
	for table, rows := range more.rows {
		c.rows[table] = append(c.rows[table], rows...)
	}
}

// flush returns all waiting statements. Afterwards no statement waits.
func (c *changes) flush() []store.Statement {
	all := c.statements
	for table, rows := range c.rows {
		all = append(all, insertions[table].of(rows)...)
	}
	*c = changes{}
	return all
}
