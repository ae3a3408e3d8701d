package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
)

const (
	// lockStates is lockState for many, in their order. A state that is not there is locked
	// as a row, too, since of two who store an entity's first content at once one replaces
	// the other's; the upsert behind it overwrites that row. It locks as FOR UPDATE would,
	// and writes nothing of a state that is there.
	lockStates = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, absent, etag, last_modified)
SELECT source, facet, key, -1, '', 0, '', 0, 0, 0, 0, false, '', ''
FROM unnest($1::text[], $2::text[], $3::text[]) AS i (source, facet, key)
ON CONFLICT (source, facet, key) DO UPDATE SET version = s.version WHERE false`

	// selectHashes is a statement of its own: it sees what was committed by those that
	// lockStates waited for.
	selectHashes = `SELECT i.n, s.hash` + joinEntities

	// insertOutboxEvents has a later change replace the effect that waits for quiet. It gets a new
	// id: a relay that has claimed the former effect must not finish this one.
	insertOutboxEvents = store.InsertOutboxEvent + `
SELECT i.source, i.facet, i.key, i.version, i.at, i.before, i.after, i.publish_change, i.triggers::json, i.due_at, i.quiet_facet, i.latest_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[], $8::bool[], $9::text[], $10::bigint[], $11::text[], $12::bigint[])
	WITH ORDINALITY AS i (source, facet, key, version, at, before, after, publish_change, triggers, due_at, quiet_facet, latest_at, n) ORDER BY i.n
ON CONFLICT (source, facet, key, quiet_facet) WHERE quiet_facet <> '' DO UPDATE
SET id = DEFAULT, version = excluded.version, at = excluded.at, after = excluded.after, triggers = excluded.triggers,
	due_at = LEAST(e.latest_at, excluded.due_at)`

	// claimOutboxEvents passes over what another instance is claiming at the moment.
	claimOutboxEvents = `WITH due AS (
SELECT *` + store.DueOutboxEvents + `
FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE outbox e SET due_at = $4 FROM due WHERE e.id = due.id
)
SELECT ` + store.OutboxColumns + ` FROM due e ORDER BY e.due_at, e.id`

	// deleteOutboxEvents locks in the order of writeOutboxEvents: both may write an effect that waits
	// for quiet.
	deleteOutboxEvents = `WITH done AS (
SELECT id FROM outbox WHERE id = ANY($1::bigint[]) ORDER BY source, facet, key, quiet_facet FOR UPDATE
)
DELETE FROM outbox e USING done WHERE e.id = done.id`
	markPublished = `UPDATE outbox SET publish_change = false WHERE id = ANY($1)`
)

// lockReplaced locks the states of the writes that have effects and that the touch left over,
// and returns the hashes of their content by their places in the batch.
func lockReplaced(ctx context.Context, tx pgx.Tx, b *store.Batch) (map[int]store.Hash, error) {
	var of entities
	var places []int
	for i, w := range b.Writes {
		if w.Kind == store.Content && b.Results[i] == 0 && !w.Outbox.Empty() {
			of.add(w.Entity)
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	before := make(map[int]store.Hash, len(places))
	var both pgx.Batch
	both.Queue(lockStates, of.sources, of.facets, of.keys)
	both.Queue(selectHashes, of.sources, of.facets, of.keys).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var n int
			var hash []byte
			if err := rows.Scan(&n, &hash); err != nil {
				return err
			}
			var h store.Hash
			copy(h[:], hash)
			before[places[n-1]] = h
		}
		return rows.Err()
	})
	return before, tx.SendBatch(ctx, &both).Close()
}

// writeOutboxEvents writes down what follows from those of the writes that brought a change.
func writeOutboxEvents(ctx context.Context, tx pgx.Tx, b *store.Batch, before map[int]store.Hash) error {
	var c columns
	var r outboxColumns
	for i, w := range b.Writes {
		hash, locked := before[i]
		if !locked || b.Results[i] != store.Changed {
			continue
		}
		rows, err := w.OutboxRows(hash)
		if err != nil {
			return fmt.Errorf("the effects of %s: %w", w.Entity, err)
		}
		for _, row := range rows {
			c.add(w)
			r.add(row)
		}
	}
	if len(r.publish) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, insertOutboxEvents, c.sources, c.facets, c.keys, c.versions, c.checked,
		r.befores, r.afters, r.publish, r.triggers, r.dues, r.quiets, r.latests)
	return err
}

// outboxColumns are rows as the arrays that unnest takes.
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

// ClaimOutboxEvents claims effects of a source, the earliest first, most of them at most, until
// now and the lease: what is not finished by then is claimed again. Any number of
// instances may claim at once.
func (s *Store) ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, most int) ([]store.OutboxEvent, error) {
	var claimed []store.OutboxEvent
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimOutboxEvents, source, now.UnixMicro(), most, now.Add(lease).UnixMicro())
		if err != nil {
			return err
		}
		claimed, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e store.OutboxEvent, err error) {
			return e, e.ScanOutboxEvent(row.Scan)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim effects of %s: %w", source, classifyError(err))
	}
	return claimed, nil
}

// NextOutboxTime returns when the source's next effect may be claimed; zero if there is none.
func (s *Store) NextOutboxTime(ctx context.Context, source string) (time.Time, error) {
	var us int64
	err := s.pool.QueryRow(ctx, store.SelectNextOutboxTime, source).Scan(&us)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next effect of %s: %w", source, err)
	}
	return time.UnixMicro(us).UTC(), nil
}

// MarkChangesPublished notes of effects that their changes were told, and need not be again.
func (s *Store) MarkChangesPublished(ctx context.Context, ids []int64) error {
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, markPublished, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("note that %d changes were told: %w", len(ids), classifyError(err))
	}
	return nil
}

// DeleteOutboxEvents deletes effects: all of each has been done. Those that are gone already
// are passed over.
func (s *Store) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	err := pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, deleteOutboxEvents, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("finish %d effects: %w", len(ids), classifyError(err))
	}
	return nil
}
