// Package collection keeps lists item by item. A collection is an entity whose content is a list of an
// upstream, such as the issues of a repository. Each element of the list is an item with an id. The
// rules of a walk are pure functions (walk.go). The statements run in PostgreSQL and SQLite,
// through store.Tx.
//
// # Walks and pages
//
// A walk reads the list from its first page to its last. One update request fetches one page. One
// transaction stores the pages of several collections, at most one of each:
//
//	no walk is open  → page 1            a request of the collection: a read, a prefetch, a refresh
//	page n           → page n+1          the transaction that stores page n writes the request of page n+1
//	                                     into the outbox, where it stays until page n+1 is stored
//	last page        → no walk is open   the walk is complete: CompleteAt and the cursor advance
//	last page        → another walk      a webhook has announced a change during the walk (Collections.WalkAgain)
//	any page         → no walk is open   the request became a dead letter (Collections.Abandon)
//
// A request without a page number continues an open walk. A request with a page number is skipped if
// that page is not the next one, so a request that was published twice causes no second call.
//
// # Cursor
//
// The cursor is the value of an item's field up to which the collection is complete. A walk with a
// cursor requests newer items only. The value advances only over items that are stored:
//
//	order | advances                                      | to
//	------|-----------------------------------------------|------------------------------------------------
//	asc   | with each page                                | the greatest value seen
//	desc  | at the end of the walk                        | the greatest value seen
//	none  | at the end of the walk                        | the greatest value seen
//
// A cursor that is a time never advances beyond the upstream's time at the start of the walk. The next
// walk begins Rules.Lookback before the cursor. The cursor never moves backward.
//
// A full walk requests the whole list. Full walks are the first walk, the walk after a change of the
// settings that determine the items (select, ignore, id, cursor.field), and one walk every
// Rules.FullEvery. Each walk is full with DeletesFull and without a cursor, or while the cursor of the
// settings has no value.
//
// # Deletions
//
// With DeletesFull, a full walk deletes the items that the list no longer has. A list that changes
// while its pages are fetched can hide an item. So an item of a list with several pages is deleted
// only after two full walks in a row have not found it. Each page of these walks has a row of the table
// walk_pages with a digest of each id. If too many items would be deleted (Rules.ShrinkGuard), nothing is
// stored (ErrShrunk).
//
// # Invariants
//
//   - A page is stored once: Write compares the version of the collection that its worker has read.
//   - An item is never replaced by an item of an older fetch.
//   - An unchanged item is not written.
//   - The request of the next page is written in the transaction that stores a page. An open walk has exactly
//     one such request in the outbox, also after its delivery.
//   - State.Items equals the number of stored items that are not deleted.
//
// Example: a list has 250 issues in pages of 100. The first walk stores 100, 100 and 50 items in three
// transactions. The greatest updated_at is 12:00:00, which becomes the cursor. With a lookback of one
// hour the second walk requests issues since 11:00:00. The upstream answers with one page of three
// issues, of which one has changed: one item is written.
package collection
