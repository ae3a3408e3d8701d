package collection

import (
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// The statements are for PostgreSQL and SQLite. Times are microseconds since 1970 UTC; 0 means no time.
// The first three arguments of each statement are source, facet and key.
const (
	// selectSnapshot returns the state of the collection's snapshot, the version of its stored failure
	// (-1 means none), and its row of the table collections. If this row is missing, its columns are 0 or
	// empty. The lock of lockStates also protects the stored failure.
	selectSnapshot = `SELECT s.version, s.hash, s.encoding, s.last_updated_at,
	COALESCE((SELECT u.version FROM update_status u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3), -1), ` + stateColumnsOrNone + `
FROM snapshot_state s
LEFT JOIN collections c ON c.source = s.source AND c.facet = s.facet AND c.key = s.key
WHERE s.source = $1 AND s.facet = $2 AND s.key = $3`

	stateColumns = `version, extract_version, visibility, items, changed, changed_at, cursor_value, etag, complete_at, full_at, full_walk,
	walk, walk_at, walk_date, page, position, checkpoint, walk_full, greatest, walk_etag, walk_extract_version`
	stateColumnsOrNone = `COALESCE(c.version, 0), COALESCE(c.extract_version, 0), COALESCE(c.visibility, ''), COALESCE(c.items, 0),
	COALESCE(c.changed, 0), COALESCE(c.changed_at, 0), COALESCE(c.cursor_value, ''), COALESCE(c.etag, ''), COALESCE(c.complete_at, 0),
	COALESCE(c.full_at, 0), COALESCE(c.full_walk, 0), COALESCE(c.walk, 0), COALESCE(c.walk_at, 0), COALESCE(c.walk_date, 0),
	COALESCE(c.page, 0), COALESCE(c.position, ''), COALESCE(c.checkpoint, ''), COALESCE(c.walk_full, false), COALESCE(c.greatest, ''),
	COALESCE(c.walk_etag, ''), COALESCE(c.walk_extract_version, 0)`
	selectState = `SELECT ` + stateColumns + ` FROM collections WHERE source = $1 AND facet = $2 AND key = $3`
	// walkAgain requests another walk after the open one. `takeWalkAgain` is executed when the open
	// walk ends: it removes this request, and writes a row only if there was one. Argument of
	// takeWalkAgain: id of the open walk.
	walkAgain     = `UPDATE collections SET walk_again = true WHERE source = $1 AND facet = $2 AND key = $3 AND walk <> 0 AND NOT walk_again`
	takeWalkAgain = `UPDATE collections SET walk_again = false WHERE source = $1 AND facet = $2 AND key = $3 AND walk = $4 AND walk_again`
	// abandonWalk closes an open walk. Argument: id of the walk.
	abandonWalk = `UPDATE collections SET walk = 0, walk_at = 0, walk_date = 0, page = 0, position = '', checkpoint = '', walk_full = false,
	greatest = '', walk_etag = '', walk_extract_version = 0, walk_again = false
WHERE source = $1 AND facet = $2 AND key = $3 AND walk = $4 AND walk <> 0`

	deleteItems     = `DELETE FROM items WHERE source = $1 AND facet = $2 AND key = $3`
	deleteWalkPages = `DELETE FROM walk_pages WHERE source = $1 AND facet = $2 AND key = $3`
	// deleteOldItems deletes the rows of items that were deleted before a time. Argument: this time.
	deleteOldItems = deleteItems + ` AND deleted AND changed_at < $4`
	// deleteExpiredItems deletes items that have not changed since a time. Arguments: this time in
	// milliseconds, this time in microseconds. Versions increase like a clock in milliseconds, so the
	// condition on the version selects nearly the same rows as the condition on the time. It lets the
	// database use the index items_changed.
	deleteExpiredItems = deleteItems + ` AND NOT deleted AND version < $4 AND changed_at < $5`
	// deleteFirstItems deletes the items whose last changes are the oldest. Argument: number of items
	// to delete.
	deleteFirstItems = deleteItems + ` AND item IN (SELECT i.item FROM items i
	WHERE i.source = $1 AND i.facet = $2 AND i.key = $3 AND NOT i.deleted ORDER BY i.version, i.item LIMIT $4)`
	// deleteOtherWalks deletes the rows of walk_pages of all walks except one. Argument: id of that walk.
	deleteOtherWalks = deleteWalkPages + ` AND walk <> $4`

	// selectPresent returns the ids and hashes of all items that are not deleted.
	selectPresent = `SELECT i.item, i.hash FROM items i WHERE i.source = $1 AND i.facet = $2 AND i.key = $3 AND NOT i.deleted`
	// selectWalkPages returns the digests of the items that two walks have found. Arguments: ids of the walks.
	selectWalkPages = `SELECT items FROM walk_pages WHERE source = $1 AND facet = $2 AND key = $3 AND walk IN ($4, $5)`

	itemColumns = `item, hash, version, changed_at, deleted, encoding, payload`
	selectItem  = `SELECT ` + itemColumns + ` FROM items WHERE source = $1 AND facet = $2 AND key = $3 AND item = $4 AND NOT deleted`
	// selectItems returns items in the order of their last changes. Arguments: version and id of the
	// item before the first one, time since which the items have changed, true to include deleted
	// items, limit.
	selectItems = `SELECT ` + itemColumns + ` FROM items
WHERE source = $1 AND facet = $2 AND key = $3 AND (version, item) > ($4, $5) AND changed_at >= $6 AND ($7 OR NOT deleted)
ORDER BY version, item LIMIT $8`
)

// key returns the arguments of a statement: the source, facet and key of the entity, and then more.
func key(e schemas.Entity, more ...any) []any {
	return append([]any{e.Source, e.Facet, e.Key}, more...)
}

// selectHashes returns the hashes of the items with the given ids.
var selectHashes = queryByIDs(`SELECT item, hash, deleted FROM items WHERE source = $1 AND facet = $2 AND key = $3 AND item`)

// lockStates locks the rows of collections in snapshot_state, in the order of its arguments, and inserts
// the missing rows. Writes of pages and deletions of snapshots all lock this row first, which prevents
// deadlocks.
var lockStates = insertion(`INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified)`, 14, `
ON CONFLICT (source, facet, key) DO UPDATE SET version = s.version WHERE false`)

// The numbers of the tables into which rows are inserted. A transaction inserts into the tables in this
// order.
const (
	tableNewItems = iota
	tableItems
	tableWalkPages
	tableSnapshots
	tablePayloads
	tableStates
	tableEvents
	tables
)

// insertItems inserts rows of items.
const insertItems = `INSERT INTO items AS i (source, facet, key, item, hash, version, changed_at, deleted, encoding, size, payload)`

// insertions has the statement that inserts rows, for each table. A row of the table items does not
// replace a row of a later fetch. The row of a new item needs no ON CONFLICT, with which PostgreSQL needs
// 1.6 times as long.
var insertions = [tables]rowsStatement{
	tableNewItems: insertion(insertItems, 11, ``),
	tableItems: insertion(insertItems, 11, `
ON CONFLICT (source, facet, key, item) DO UPDATE
SET hash = excluded.hash, version = excluded.version, changed_at = excluded.changed_at, deleted = excluded.deleted,
	encoding = excluded.encoding, size = excluded.size, payload = excluded.payload
WHERE excluded.version >= i.version`),
	tableWalkPages: insertion(`INSERT INTO walk_pages (source, facet, key, walk, page, items)`, 6, ``),
	tableSnapshots: insertion(`INSERT INTO snapshot_state (source, facet, key, version, hash, extract_version, encoding, size, media_type,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified, visibility, manual)`, 17, `
ON CONFLICT (source, facet, key) DO UPDATE
SET version = excluded.version, hash = excluded.hash, extract_version = excluded.extract_version, encoding = excluded.encoding,
	size = excluded.size, media_type = excluded.media_type, last_fetched_at = excluded.last_fetched_at,
	last_checked_at = excluded.last_checked_at, last_updated_at = excluded.last_updated_at, not_found = excluded.not_found,
	etag = excluded.etag, last_modified = excluded.last_modified, visibility = excluded.visibility, manual = excluded.manual, alias_payload = NULL`),
	tablePayloads: insertion(`INSERT INTO snapshot_payload (source, facet, key, payload)`, 4, `
ON CONFLICT (source, facet, key) DO UPDATE SET payload = excluded.payload`),
	tableStates: insertion(`INSERT INTO collections (source, facet, key, `+stateColumns+`)`, 24, `
ON CONFLICT (source, facet, key) DO UPDATE
SET version = excluded.version, extract_version = excluded.extract_version, visibility = excluded.visibility, items = excluded.items,
	changed = excluded.changed, changed_at = excluded.changed_at, cursor_value = excluded.cursor_value, etag = excluded.etag,
	complete_at = excluded.complete_at, full_at = excluded.full_at, full_walk = excluded.full_walk, walk = excluded.walk,
	walk_at = excluded.walk_at, walk_date = excluded.walk_date, page = excluded.page, position = excluded.position,
	checkpoint = excluded.checkpoint, walk_full = excluded.walk_full, greatest = excluded.greatest, walk_etag = excluded.walk_etag,
	walk_extract_version = excluded.walk_extract_version, walk_again = collections.walk_again AND collections.walk = excluded.walk`),
	tableEvents: insertion(store.InsertOutboxEvent, 13, ``),
}

// values returns the values of the columns in stateColumns.
func (s State) values() []any {
	w := s.Walk
	return []any{
		s.Version, s.ExtractVersion, s.Visibility, s.Items, s.Changed, store.ToMicros(s.ChangedAt), s.Cursor, s.ETag,
		store.ToMicros(s.CompleteAt), store.ToMicros(s.FullAt), s.FullWalk, w.ID, store.ToMicros(w.Began), store.ToMicros(w.Date), w.Page, w.Position, w.Checkpoint,
		w.Full, w.Greatest, w.ETag, w.ExtractVersion,
	}
}

func (s *State) scan(scan func(...any) error) error { return s.scanAfter(scan) }

// scanAfter scans one row of a query. It reads the first columns into `before`, and the next columns
// into the state s.
func (s *State) scanAfter(scan func(...any) error, before ...any) error {
	w := &s.Walk
	var changed, complete, full, began, date int64
	err := scan(append(before, &s.Version, &s.ExtractVersion, &s.Visibility, &s.Items, &s.Changed, &changed, &s.Cursor, &s.ETag,
		&complete, &full, &s.FullWalk, &w.ID, &began, &date, &w.Page, &w.Position, &w.Checkpoint,
		&w.Full, &w.Greatest, &w.ETag, &w.ExtractVersion)...)
	s.ChangedAt, s.CompleteAt, s.FullAt, w.Began, w.Date = store.FromMicros(changed), store.FromMicros(complete), store.FromMicros(full), store.FromMicros(began), store.FromMicros(date)
	return err
}

func (i *Item) scan(e schemas.Entity, scan func(...any) error) error {
	var hash, payload []byte
	var encoding string
	var changed int64
	if err := scan(&i.ID, &hash, &i.Version, &changed, &i.Deleted, &encoding, &payload); err != nil {
		return err
	}
	copy(i.Hash[:], hash)
	i.ChangedAt = store.FromMicros(changed)
	if i.Deleted {
		return nil
	}
	var err error
	i.Content, err = store.Snapshot{State: store.State{Entity: e, Encoding: encoding}, Payload: payload}.Decode(nil)
	return err
}
