package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

const (
	// lockStates locks the state rows of many entities in the order of its arguments. For an entity
	// without a row it inserts a row, because only a row can be locked; the upsert overwrites the
	// row later. So if two transactions store an entity's first content at the same time, the
	// second transaction waits, and then sees the hash that the first transaction stored. Existing
	// rows are locked, as by FOR UPDATE, but not changed.
	lockStates = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified)
SELECT source, facet, key, -1, '', 0, '', 0, 0, 0, 0, false, '', ''
FROM unnest($1::text[], $2::text[], $3::text[]) AS i (source, facet, key)
ON CONFLICT (source, facet, key) DO UPDATE SET version = s.version WHERE false`

	// selectHashes reads the stored hashes. It is a separate statement, so that it sees rows that
	// were committed while lockStates waited.
	selectHashes = `SELECT i.n, s.hash` + joinEntities

	// insertOutboxEvents replaces the event of a trigger with a quiet time if an earlier event of
	// the same entity and facet is not delivered yet. The new event gets a new ID, so that a relay
	// that claimed the earlier event does not delete the new event. A claimed event is due after its
	// latest_at; the new event then begins a new period, because the claimed one is being delivered.
	// Otherwise each change during a delivery would be due at once.
	insertOutboxEvents = store.InsertOutboxEvent + `
SELECT i.source, i.facet, i.key, i.version, i.at, i.before, i.after, i.publish_change, i.triggers::json, i.due_at, i.quiet_facet, i.latest_at, ''
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[], $8::bool[], $9::text[], $10::bigint[], $11::text[], $12::bigint[])
	WITH ORDINALITY AS i (source, facet, key, version, at, before, after, publish_change, triggers, due_at, quiet_facet, latest_at, n) ORDER BY i.n
ON CONFLICT (source, facet, key, quiet_facet) WHERE quiet_facet <> '' DO UPDATE
SET id = DEFAULT, version = excluded.version, at = excluded.at, after = excluded.after, triggers = excluded.triggers,
	due_at = CASE WHEN e.due_at > e.latest_at THEN excluded.due_at ELSE LEAST(e.latest_at, excluded.due_at) END,
	latest_at = CASE WHEN e.due_at > e.latest_at THEN excluded.latest_at ELSE e.latest_at END`

	// claimOutboxEvents claims due events. It skips rows that another process is claiming.
	claimOutboxEvents = `WITH due AS (
SELECT *` + shared.DueOutboxEvents + `
FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE outbox e SET due_at = $4 FROM due WHERE e.id = due.id
)
SELECT ` + shared.OutboxColumns + ` FROM due e ORDER BY e.due_at, e.id`

	// deleteOutboxEvents locks rows in the same order as writeOutboxEvents, which prevents
	// deadlocks: both may write the event of the same trigger.
	deleteOutboxEvents = `WITH done AS (
SELECT id, quiet_facet FROM outbox WHERE id = ANY($1::bigint[]) ORDER BY source, facet, key, quiet_facet FOR UPDATE
), pages AS (
	UPDATE outbox e SET ` + shared.PostponePage + ` FROM done WHERE e.id = done.id AND done.quiet_facet = '` + store.PageRequest + `'
)
DELETE FROM outbox e USING done WHERE e.id = done.id AND done.quiet_facet <> '` + store.PageRequest + `'`
	markPublished = `UPDATE outbox SET publish_change = false WHERE id = ANY($1)`
)

// lockReplaced handles the writes of a batch that have outbox events and whose content is new or
// changed; touchUnchanged has handled the writes with unchanged content. lockReplaced locks the
// rows of the entities in snapshot_state, and returns the stored hashes by the position of the
// write in the batch.
func lockReplaced(ctx context.Context, tx pgx.Tx, b *shared.Batch) (map[int]store.Hash, error) {
	var keys entities
	var positions []int
	for i, w := range b.Writes {
		if w.Kind == store.Content && b.Results[i] == 0 && !w.Outbox.Empty() {
			keys.add(w.Entity)
			positions = append(positions, i)
		}
	}
	if len(positions) == 0 {
		return nil, nil
	}
	before := make(map[int]store.Hash, len(positions))
	var both pgx.Batch
	both.Queue(lockStates, keys.sources, keys.facets, keys.keys)
	both.Queue(selectHashes, keys.sources, keys.facets, keys.keys).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n int
			var hash []byte
			if err := rows.Scan(&n, &hash); err != nil {
				return err
			}
			var h store.Hash
			copy(h[:], hash)
			before[positions[n-1]] = h
		}
		return rows.Err()
	})
	return before, tx.SendBatch(ctx, &both).Close()
}

// writeOutboxEvents inserts the outbox events of the writes that changed content.
func writeOutboxEvents(ctx context.Context, db prepared, b *shared.Batch, before map[int]store.Hash) error {
	var c columns
	var r outboxColumns
	for i, w := range b.Writes {
		hash, locked := before[i]
		if !locked || b.Results[i] != store.Changed {
			continue
		}
		rows, err := w.OutboxRows(hash)
		if err != nil {
			return fmt.Errorf("encode the outbox events of %s: %w", w.Entity, err)
		}
		for _, row := range rows {
			c.add(w)
			r.add(row)
		}
	}
	return insertOutbox(ctx, db, c, r)
}

// insertOutbox inserts rows into the outbox. The columns of the rows are in c and r: each of their
// slices has one element for each row.
func insertOutbox(ctx context.Context, db prepared, c columns, r outboxColumns) error {
	if len(r.publish) == 0 {
		return nil
	}
	return db.exec(ctx, insertOutboxEvents, c.sources, c.facets, c.keys, c.versions, c.checked,
		r.befores, r.afters, r.publish, r.triggers, r.dues, r.quiets, r.latests)
}

// WriteOutbox stores only the outbox events of the writes. The writes must be of different entities.
func (s *Store) WriteOutbox(ctx context.Context, writes []store.Write) error {
	var c columns
	var r outboxColumns
	for _, w := range shared.NewBatch(writes).Writes {
		rows, err := w.OutboxRows(store.Hash{})
		if err != nil {
			return fmt.Errorf("encode the outbox events of %s: %w", w.Entity, err)
		}
		for _, row := range rows {
			c.add(w)
			r.add(row)
		}
	}
	err := pgx.BeginTxFunc(ctx, s.pool, s.beginOptions(), func(tx pgx.Tx) error { return insertOutbox(ctx, s.prepared(tx), c, r) })
	if err != nil {
		return fmt.Errorf("store %d outbox events: %w", len(r.publish), classifyError(err))
	}
	return nil
}

// outboxColumns holds the fields of outbox rows, one slice per column, as array arguments of
// unnest.
type outboxColumns struct {
	befores, afters  [][]byte
	publish          []bool
	triggers, quiets []string
	dues, latests    []int64
}

func (c *outboxColumns) add(r store.OutboxRow) {
	c.befores, c.afters = append(c.befores, r.Before), append(c.afters, r.After)
	c.publish, c.triggers, c.quiets = append(c.publish, r.PublishChange), append(c.triggers, r.Triggers), append(c.quiets, r.QuietFacet)
	c.dues, c.latests = append(c.dues, r.Due), append(c.latests, r.Latest)
}

// ClaimOutboxEvents claims at most `limit` due outbox events of a source, earliest first, for the
// duration of the lease. An event that is not deleted when the lease ends can be claimed again.
// Concurrent calls claim different events.
func (s *Store) ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.OutboxEvent, error) {
	var claimed []store.OutboxEvent
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimOutboxEvents, source, now.UnixMicro(), limit, now.Add(lease).UnixMicro())
		if err != nil {
			return err
		}
		claimed, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e store.OutboxEvent, err error) {
			return e, shared.ScanOutboxEvent(&e, row.Scan)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim outbox events of %s: %w", source, classifyError(err))
	}
	return claimed, nil
}

// MarkChangesPublished records that the change messages of outbox events were published and must
// not be published again.
func (s *Store) MarkChangesPublished(ctx context.Context, ids []int64) error {
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markPublished, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("mark %d changes as published: %w", len(ids), classifyError(err))
	}
	return nil
}

// DeleteOutboxEvents deletes delivered outbox events. It postpones events that request a page instead
// (store.PageRequest). It ignores IDs without a row.
func (s *Store) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, deleteOutboxEvents, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("delete %d outbox events: %w", len(ids), classifyError(err))
	}
	return nil
}
