package collection

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/freshet/freshet/store"
)

// write is one page of a batch while it is stored.
type write struct {
	Write
	tx     store.Tx
	result *Written
	items  []Fetched       // the items of the page; if the page has an id twice, only the later item
	seen   map[string]bool // the ids of the page

	// The stored data: the states of the snapshot and of the collection, the version of the stored
	// failure (-1 means none), and the stored items with the ids of the page.
	snapshot store.State
	current  State
	failed   int64
	stored   map[string]storedItem

	after State
	ended bool // nothing of the page is stored
	changes
}

type storedItem struct {
	hash    store.Hash
	deleted bool
}

func newWrite(tx store.Tx, page Write, result *Written) *write {
	w := &write{Write: page, tx: tx, result: result, after: page.After, seen: map[string]bool{}, stored: map[string]storedItem{}}
	for _, i := range slices.Backward(page.Page.Items) {
		if !w.seen[i.ID] {
			w.seen[i.ID] = true
			w.items = append(w.items, i)
		}
	}
	slices.Reverse(w.items)
	return w
}

// reads returns the statements that read the stored data of the collection, which must be locked.
func (w *write) reads() []store.Statement {
	all := []store.Statement{{Text: selectSnapshot, Args: key(w.Entity), Row: w.readState}}
	if w.startsEmpty() { // no items are stored, or all of them will be deleted
		return all
	}
	for some := range slices.Chunk(w.items, maxRows) {
		ids := make([]string, len(some))
		for n, i := range some {
			ids[n] = i.ID
		}
		s := selectHashes.of(key(w.Entity), ids)
		s.Row = w.readHash
		all = append(all, s)
	}
	return all
}

// startsEmpty reports whether all items of the page are new, because the items that are stored are deleted first.
func (w *write) startsEmpty() bool { return w.Before.reset || w.Before.Version == 0 }

func (w *write) readState(scan func(...any) error) error {
	var hash []byte
	var updated int64
	err := w.current.scanAfter(scan, &w.snapshot.Version, &hash, &w.snapshot.Encoding, &updated, &w.failed)
	copy(w.snapshot.Hash[:], hash)
	w.snapshot.UpdatedAt = store.FromMicros(updated)
	return err
}

func (w *write) readHash(scan func(...any) error) error {
	var id string
	var hash []byte
	var deleted bool
	err := scan(&id, &hash, &deleted)
	if err == nil {
		w.stored[id] = storedItem{store.Hash(hash), deleted}
	}
	return err
}

// writeItems adds the statements that store the changed items and delete the missing ones. Its errors
// are errors of the database, and ErrShrunk.
func (w *write) writeItems(ctx context.Context) error {
	if w.current.Version != w.Before.Version || w.snapshot.Version > w.Page.Version {
		w.end(Written{Result: Moved})
		return nil
	}
	if w.current.Walk.Open() || w.after.Walk.Open() { // If the snapshot was deleted, the walk is gone, but its request of a page can still be in the outbox.
		w.add(deletePageRequest)
	}
	if w.startsEmpty() {
		w.current = State{}
		if w.snapshot.Version >= 0 { // without a snapshot there are no items (store.DeleteOrphans)
			w.add(deleteItems)
			w.add(deleteWalkPages)
		}
	}
	w.after.Items, w.after.Changed, w.after.ChangedAt = w.current.Items, w.current.Changed, w.current.ChangedAt
	w.writeChanged()
	return w.deleteMissing(ctx)
}

// writeState deletes expired items, and adds the statements that store the state, the snapshot and the
// request of the next page.
func (w *write) writeState(ctx context.Context) error {
	if err := w.expire(ctx); err != nil {
		return err
	}
	if err := w.writeSnapshot(ctx); err != nil {
		return err
	}
	w.insert(tableStates, w.Entity, w.after.values()...)
	if err := w.requestNext(ctx); err != nil {
		return err
	}
	w.result.Result, w.result.State = Stored, w.after
	return nil
}

// add adds a statement. Its first arguments are the source, facet and key of the collection.
func (w *write) add(text string, more ...any) {
	w.statements = append(w.statements, store.Statement{Text: text, Args: key(w.Entity, more...)})
}

// end sets the result of a page that is not stored, and discards its statements. If lockStates has
// inserted a row, end deletes the row.
func (w *write) end(result Written) {
	*w.result, w.ended, w.changes = result, true, changes{}
	if w.snapshot.Version < 0 {
		w.add(store.DeleteState)
	}
}

// writeChanged adds the rows of the items that the page changes.
func (w *write) writeChanged() {
	for _, i := range w.items {
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
		p, table := i.payload, tableItems
		if p.Encoding == "" {
			p = store.Encode(i.Content)
		}
		if !known {
			table = tableNewItems
		}
		w.insert(table, w.Entity, i.ID, i.Hash[:], w.Page.Version, store.ToMicros(w.Page.Began), false, p.Encoding, p.Size, p.Bytes)
		if !known || before.deleted {
			w.after.Items++
			before.hash = store.Hash{}
		}
		w.result.Changed++
		w.changed(i.ID, before.hash, i.Hash)
	}
	if w.Rules.Deletes == DeletesFull && w.Before.Walk.Full && (w.after.Walk.Open() || w.Before.Walk.Page > 1) {
		walk := w.Before.Walk.ID
		if walk == 0 {
			walk = w.Page.Version
		}
		items := make([]byte, 0, len(w.items)*len(digest{}))
		for _, i := range w.items {
			d := digestOf(i.ID)
			items = append(items, d[:]...)
		}
		w.insert(tableWalkPages, w.Entity, walk, w.Before.Walk.Page, items)
	}
}

func (w *write) delete(id string, before store.Hash) {
	w.insert(tableItems, w.Entity, id, before[:], w.Page.Version, store.ToMicros(w.Page.Began), true, "", 0, []byte{})
	w.after.Items--
	w.result.Deleted++
	w.changed(id, before, store.Hash{})
}

// changed records that the page changes an item, and adds the event of this change.
func (w *write) changed(id string, before, after store.Hash) {
	w.after.Changed, w.after.ChangedAt = w.Page.Version, w.Page.Began
	if w.Outbox.PublishChange && !w.rewrites() {
		w.insertEvent(store.OutboxRow{Before: hashBytes(before), After: hashBytes(after), PublishChange: true, Triggers: "[]", Due: store.ToMicros(w.Page.Began)}, id)
	}
}

// rewrites reports whether the walk stores all items again because a setting has changed. Such a change
// publishes no event.
func (w *write) rewrites() bool {
	return w.Before.ExtractVersion != 0 && w.Before.ExtractVersion != w.Before.Walk.ExtractVersion
}

// minGuardedDeletes is the number of deletions that are always allowed. So a short list may become
// empty. Rules.ShrinkGuard applies to more deletions.
const minGuardedDeletes = 10

// deleteMissing deletes the items that the list no longer has. It does so at the end of a full walk.
func (w *write) deleteMissing(ctx context.Context) error {
	if w.after.Walk.Open() {
		return nil
	}
	if !w.startsEmpty() {
		w.add(deleteOldItems, store.ToMicros(w.Page.Began.Add(-KeepDeleted)))
	}
	if w.Rules.Deletes != DeletesFull || !w.Before.Walk.Full || w.Page.NotModified {
		return nil
	}
	defer w.add(deleteOtherWalks, w.after.FullWalk)
	if w.after.FullWalk != 0 && w.current.FullWalk == 0 {
		return nil
	}
	missing, err := w.missing(ctx)
	if err != nil {
		return err
	}
	items := w.current.Items
	if left := float64(items - int64(len(missing))); len(missing) > minGuardedDeletes && left < w.Rules.ShrinkGuard*float64(items) {
		return fmt.Errorf("%w: a full walk has not found %d of %d items, and the facet's shrinkGuard is %g; if the list is right, delete the snapshot", ErrShrunk, len(missing), items, w.Rules.ShrinkGuard)
	}
	for _, id := range slices.Sorted(maps.Keys(missing)) {
		w.delete(id, missing[id])
	}
	return nil
}

// missing returns the ids and hashes of the stored items that the walk, and the one before if the list has several
// pages, have not found. Two ids have the same digest with a probability of 10^-9 in a list of 100,000 items; the
// missing one of them is then kept.
func (w *write) missing(ctx context.Context) (map[string]store.Hash, error) {
	found, missing := map[digest]bool{}, map[string]store.Hash{}
	for id := range w.seen {
		found[digestOf(id)] = true
	}
	var reads []store.Statement
	if w.after.FullWalk != 0 {
		reads = append(reads, store.Statement{Text: selectWalkPages, Args: key(w.Entity, w.after.FullWalk, w.current.FullWalk), Row: func(scan func(...any) error) error {
			var items []byte
			err := scan(&items)
			for d := range slices.Chunk(items, len(digest{})) {
				found[digest(d)] = true
			}
			return err
		}})
	}
	reads = append(reads, store.Statement{Text: selectPresent, Args: key(w.Entity), Row: func(scan func(...any) error) error {
		var id string
		var hash []byte
		err := scan(&id, &hash)
		if err == nil && !found[digestOf(id)] {
			missing[id] = store.Hash(hash)
		}
		return err
	}})
	_, err := w.tx.Exec(ctx, reads...)
	return missing, err
}

// digest identifies an item in a row of walk_pages.
type digest [8]byte

func digestOf(id string) digest {
	hash := sha256.Sum256([]byte(id))
	return digest(hash[:8])
}

// expired reports whether the cursor value of an item is a time before the period Rules.Keep, so that
// the item is not stored.
func (w *write) expired(i Fetched) bool {
	at, isTime := parseTime(i.Cursor)
	return w.Rules.Keep > 0 && isTime && at.Before(w.Page.Began.Add(-w.Rules.Keep))
}

// expire deletes items at the end of a walk: items that have not changed for Rules.Keep, and the oldest
// items above Rules.MaxItems. The upstream still has these items, so no event is published.
func (w *write) expire(ctx context.Context) error {
	if w.after.Walk.Open() {
		return nil
	}
	remove := func(text string, more ...any) error {
		written, err := w.tx.Exec(ctx, append(w.flush(), store.Statement{Text: text, Args: key(w.Entity, more...)})...)
		if err == nil {
			n := written[len(written)-1]
			w.after.Items, w.result.Expired = w.after.Items-n, w.result.Expired+n
		}
		return err
	}
	if w.Rules.Keep > 0 {
		cutoff := w.Page.Began.Add(-w.Rules.Keep)
		if err := remove(deleteExpiredItems, cutoff.UnixMilli(), store.ToMicros(cutoff)); err != nil {
			return err
		}
	}
	if n := w.after.Items - w.Rules.MaxItems; w.Rules.MaxItems > 0 && n > 0 {
		return remove(deleteFirstItems, n)
	}
	return nil
}

// writeSnapshot adds the rows of the collection's snapshot, whose content is the summary of the
// collection.
func (w *write) writeSnapshot(ctx context.Context) error {
	content, hash, err := w.after.summary()
	if err != nil {
		return err
	}
	checked := w.after.CompleteAt
	if w.after.Walk.Open() {
		checked = w.after.Walk.Began
	}
	changed := w.snapshot.Encoding == "" || w.snapshot.Hash != hash
	updated := w.snapshot.UpdatedAt
	if changed {
		updated = w.Page.Began
	}
	p := store.Encode(content)
	w.insert(tableSnapshots, w.Entity, w.Page.Version, hash[:], w.Rules.ExtractVersion, p.Encoding, p.Size, "",
		store.ToMicros(checked), store.ToMicros(checked), store.ToMicros(updated), false, "", "", w.Rules.Visibility, w.Manual)
	w.insert(tablePayloads, w.Entity, p.Bytes)
	if w.failed >= 0 && w.failed <= w.Page.Version {
		w.add(store.DeleteStatus)
	}
	if !changed || w.Outbox.Empty() || w.rewrites() {
		return nil
	}
	before := w.snapshot.Hash
	if w.snapshot.Encoding == "" {
		before = store.Hash{}
	}
	rows, err := store.Write{Entity: w.Entity, Version: w.Page.Version, CheckedAt: w.Page.Began, Hash: hash, Outbox: w.Outbox}.OutboxRows(before)
	return errors.Join(err, w.addEvents(ctx, rows))
}
