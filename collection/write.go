package collection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Write is a fetched page with the state that its worker has read.
type Write struct {
	Entity schemas.Entity
	Rules  Rules
	// Before is the state before the page, as State.Begin has returned it.
	Before State
	Page   Page
	// Manual is set if the fetch was made for a reader or an operator (store.State.Manual).
	Manual bool
	// Params are the params of the request of the next page.
	Params map[string]string
	// Step is executed before the page is stored if the page belongs to a run: it moves the run's step. If it writes no row, the step
	// has ended and nothing is stored (Moved). The poller of runs requests the next page of such a walk, and not the
	// outbox.
	Step *store.Statement
	// Outbox is written if the collection has changed. With PublishChange, each changed item gets an
	// event too.
	Outbox store.OutboxEvents
}

// write is the transaction of a Write.
type write struct {
	Write
	tx         store.Tx
	after      State
	stored     map[string]storedItem
	statements []store.Statement
	// items, walkItems and events are rows to insert, without their key.
	items, walkItems, events [][]any
	seen                     map[string]bool // ids of the page
}

type storedItem struct {
	hash    store.Hash
	deleted bool
}

// Write stores a page in one transaction: changed items, the collection's state and snapshot, the events
// of the changes, and the request of the next page. The argument after is the state after the page
// (State.After). It returns the state that was stored.
func (c *Collections) Write(ctx context.Context, w Write, after State) (stored State, result Result, err error) {
	err = c.store.InTx(ctx, func(tx store.Tx) error {
		t := &write{Write: w, tx: tx, after: after, stored: map[string]storedItem{}, seen: map[string]bool{}}
		result, err = t.run(ctx)
		stored = t.after
		return err
	})
	if err != nil {
		return State{}, 0, fmt.Errorf("write page %d of %s: %w", w.Before.Walk.Page, w.Entity, err)
	}
	return stored, result, nil
}

func (w *write) run(ctx context.Context) (Result, error) {
	if _, err := w.tx.Exec(ctx, store.Statement{Text: lockState, Args: key(w.Entity, []byte{})}); err != nil {
		return 0, err
	}
	snapshot, current, err := w.readState(ctx)
	if err != nil {
		return 0, err
	}
	if current.Version != w.Before.Version || snapshot.Version > w.Page.Version {
		return Moved, w.undoLock(ctx, snapshot)
	}
	if w.Step != nil {
		written, err := w.tx.Exec(ctx, *w.Step)
		if err != nil {
			return 0, err
		}
		if written[0] == 0 {
			return Moved, w.undoLock(ctx, snapshot)
		}
	}
	if w.Before.reset {
		w.add(deleteItems)
		w.add(deleteWalkItems)
		current = State{}
	}
	w.after.Items, w.after.Changed, w.after.ChangedAt = current.Items, current.Changed, current.ChangedAt
	if err := w.writeItems(ctx); err != nil {
		return 0, err
	}
	if err := w.deleteMissing(ctx, current); err != nil {
		return 0, err
	}
	if err := w.expire(ctx); err != nil {
		return 0, err
	}
	if err := w.writeSnapshot(ctx, snapshot); err != nil {
		return 0, err
	}
	w.add(upsertState, w.after.args(w.Entity)[3:]...)
	if err := w.requestNext(ctx); err != nil {
		return 0, err
	}
	return Stored, w.tx.Commit(ctx, w.flush()...)
}

// flush returns the statements that are not executed yet.
func (w *write) flush() []store.Statement {
	all := append(w.statements, insertRows(w.Entity, insertItems, onItemConflict, w.items)...)
	all = append(all, insertRows(w.Entity, insertWalkItems, ` ON CONFLICT DO NOTHING`, w.walkItems)...)
	all = append(all, insertRows(w.Entity, insertEvents, ``, w.events)...)
	w.statements, w.items, w.walkItems, w.events = nil, nil, nil, nil
	return all
}

// add adds a statement about the collection.
func (w *write) add(text string, more ...any) {
	w.statements = append(w.statements, store.Statement{Text: text, Args: key(w.Entity, more...)})
}

// readState reads the snapshot's and the collection's state.
func (w *write) readState(ctx context.Context) (s store.State, current State, err error) {
	err = w.tx.Query(ctx, func(scan func(...any) error) error {
		var hash []byte
		var updated int64
		err := current.scanAfter(scan, &s.Version, &hash, &s.Encoding, &updated)
		copy(s.Hash[:], hash)
		s.UpdatedAt = fromMicros(updated)
		return err
	}, selectSnapshot, key(w.Entity)...)
	return s, current, err
}

// undoLock deletes the row that lockState has inserted.
func (w *write) undoLock(ctx context.Context, snapshot store.State) error {
	if snapshot.Version >= 0 {
		return nil
	}
	_, err := w.tx.Exec(ctx, store.Statement{Text: store.DeleteState, Args: key(w.Entity)})
	return err
}

// writeItems adds the statements that store the changed items of the page. If a page has an id twice,
// the later item is stored.
func (w *write) writeItems(ctx context.Context) error {
	items := make([]Fetched, 0, len(w.Page.Items))
	for _, i := range slices.Backward(w.Page.Items) {
		if !w.seen[i.ID] {
			w.seen[i.ID] = true
			items = append(items, i)
		}
	}
	slices.Reverse(items)
	if !w.Before.reset {
		for some := range slices.Chunk(items, maxRows) {
			if err := w.readHashes(ctx, some); err != nil {
				return err
			}
		}
	}
	for _, i := range items {
		before, known := w.stored[i.ID]
		if i.Deleted {
			if known && !before.deleted {
				w.delete(i.ID, before.hash)
			}
			continue
		}
		if known && !before.deleted && before.hash == i.Hash || w.expired(i) {
			continue
		}
		p := store.Encode(i.Content)
		w.items = append(w.items, []any{i.ID, i.Hash[:], w.Page.Version, micros(w.Page.Began), false, p.Encoding, p.Size, p.Bytes})
		if !known || before.deleted {
			w.after.Items++
			before.hash = store.Hash{}
		}
		w.changed(i.ID, before.hash, i.Hash)
	}
	if w.Rules.Deletes == DeletesFull && w.Before.Walk.Full && (w.after.Walk.Open() || w.Before.Walk.Page > 1) {
		walk := w.Before.Walk.ID
		if walk == 0 {
			walk = w.Page.Version
		}
		for _, i := range items {
			w.walkItems = append(w.walkItems, []any{walk, i.ID})
		}
	}
	return nil
}

func (w *write) readHashes(ctx context.Context, items []Fetched) error {
	ids := make([]any, len(items))
	for n, i := range items {
		ids[n] = i.ID
	}
	return w.tx.Query(ctx, func(scan func(...any) error) error {
		var id string
		var hash []byte
		var deleted bool
		err := scan(&id, &hash, &deleted)
		if err == nil {
			w.stored[id] = storedItem{store.Hash(hash), deleted}
		}
		return err
	}, hashesQuery(len(ids)), key(w.Entity, ids...)...)
}

func (w *write) delete(id string, before store.Hash) {
	w.items = append(w.items, []any{id, before[:], w.Page.Version, micros(w.Page.Began), true, "", 0, []byte{}})
	w.after.Items--
	w.changed(id, before, store.Hash{})
}

// changed records the change of an item, and adds the event of the change.
func (w *write) changed(id string, before, after store.Hash) {
	w.after.Changed, w.after.ChangedAt = w.Page.Version, w.Page.Began
	if w.Outbox.PublishChange && !w.rewrites() {
		w.insertEvent(store.OutboxRow{Before: hashBytes(before), After: hashBytes(after), PublishChange: true, Triggers: "[]", Due: micros(w.Page.Began)}, id)
	}
}

// rewrites reports whether the walk stores the items again because of a changed setting. Such a change
// publishes no event.
func (w *write) rewrites() bool {
	return w.Before.ExtractVersion != 0 && w.Before.ExtractVersion != w.Before.Walk.ExtractVersion
}

// minGuardedDeletes is the number of deletions above which Rules.ShrinkGuard applies. A short list may
// become empty.
const minGuardedDeletes = 10

// deleteMissing deletes the items that a complete full walk has not found.
func (w *write) deleteMissing(ctx context.Context, current State) error {
	if w.after.Walk.Open() {
		return nil
	}
	w.add(deleteOldItems, micros(w.Page.Began.Add(-KeepDeleted)))
	if w.Rules.Deletes != DeletesFull || !w.Before.Walk.Full || w.Page.NotModified {
		return nil
	}
	defer w.add(deleteOtherWalks, w.after.FullWalk)
	query, args := selectPresent, key(w.Entity)
	if w.after.FullWalk != 0 {
		if current.FullWalk == 0 {
			return nil
		}
		query, args = selectMissing, key(w.Entity, w.after.FullWalk, current.FullWalk)
	}
	missing := map[string]store.Hash{}
	err := w.tx.Query(ctx, func(scan func(...any) error) error {
		var id string
		var hash []byte
		err := scan(&id, &hash)
		if err == nil && !w.seen[id] {
			missing[id] = store.Hash(hash)
		}
		return err
	}, query, args...)
	if err != nil {
		return err
	}
	if left := float64(current.Items - int64(len(missing))); len(missing) > minGuardedDeletes && left < w.Rules.ShrinkGuard*float64(current.Items) {
		return fmt.Errorf("%w: a full walk has not found %d of %d items, and the facet's shrinkGuard is %g; if the list is right, delete the snapshot", ErrShrunk, len(missing), current.Items, w.Rules.ShrinkGuard)
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		w.delete(id, missing[id])
	}
	return nil
}

// expired reports whether an item is too old to be stored.
func (w *write) expired(i Fetched) bool {
	at, isTime := parseTime(i.Cursor)
	return w.Rules.Keep > 0 && isTime && at.Before(w.Page.Began.Add(-w.Rules.Keep))
}

// expire deletes items after a walk: items older than Rules.Keep, and items above Rules.MaxItems. Such a
// deletion is no change of the upstream's list, so it publishes no event.
func (w *write) expire(ctx context.Context) error {
	if w.after.Walk.Open() {
		return nil
	}
	remove := func(text string, more ...any) error {
		written, err := w.tx.Exec(ctx, append(w.flush(), store.Statement{Text: text, Args: key(w.Entity, more...)})...)
		if err == nil {
			w.after.Items -= written[len(written)-1]
		}
		return err
	}
	if w.Rules.Keep > 0 {
		cutoff := w.Page.Began.Add(-w.Rules.Keep)
		if err := remove(deleteExpiredItems, cutoff.UnixMilli(), micros(cutoff)); err != nil {
			return err
		}
	}
	if n := w.after.Items - w.Rules.MaxItems; w.Rules.MaxItems > 0 && n > 0 {
		return remove(deleteFirstItems, n)
	}
	return nil
}

// writeSnapshot adds the statements that store the summary of the collection as its snapshot.
func (w *write) writeSnapshot(ctx context.Context, snapshot store.State) error {
	content, hash, err := w.after.summary()
	if err != nil {
		return err
	}
	checked := w.after.CompleteAt
	if w.after.Walk.Open() {
		checked = w.after.Walk.Began
	}
	changed := snapshot.Encoding == "" || snapshot.Hash != hash
	updated := snapshot.UpdatedAt
	if changed {
		updated = w.Page.Began
	}
	p := store.Encode(content)
	w.add(updateSnapshot, w.Page.Version, hash[:], w.Rules.ExtractVersion, p.Encoding, p.Size, micros(checked), micros(updated), w.Rules.Visibility, w.Manual)
	w.add(upsertPayload, p.Bytes)
	w.add(deleteStatus, w.Page.Version)
	if !changed || w.Outbox.Empty() || w.rewrites() {
		return nil
	}
	before := snapshot.Hash
	if snapshot.Encoding == "" {
		before = store.Hash{}
	}
	rows, err := store.Write{Entity: w.Entity, Version: w.Page.Version, CheckedAt: w.Page.Began, Hash: hash, Outbox: w.Outbox}.OutboxRows(before)
	return errors.Join(err, w.addEvents(ctx, rows))
}

// requestNext adds the event that requests the next page, or another walk (Collections.WalkAgain).
func (w *write) requestNext(ctx context.Context) error {
	trigger := store.Trigger{Facet: w.Entity.Facet, Params: w.Params}
	switch {
	case w.after.Walk.Open() && w.Step != nil:
		return nil // the poller of runs requests the next page
	case w.after.Walk.Open():
		trigger.Page = w.after.Walk.Name()
	case w.Before.Walk.Open():
		written, err := w.tx.Exec(ctx, store.Statement{Text: takeWalkAgain, Args: key(w.Entity, w.Before.Walk.ID)})
		if err != nil || written[0] == 0 {
			return err
		}
	default:
		return nil
	}
	next := store.Write{Entity: w.Entity, Version: w.Page.Version, CheckedAt: w.Page.Began}
	next.Outbox.Triggers = []store.Trigger{trigger}
	rows, err := next.OutboxRows(store.Hash{})
	for i := range rows {
		rows[i].After = []byte{}
	}
	return errors.Join(err, w.addEvents(ctx, rows))
}
