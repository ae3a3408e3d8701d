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
	selectHashes = `SELECT i.n, s.hash` + ofEntities

	insertEffects = store.InsertEffect + `
SELECT i.source, i.facet, i.key, i.version, i.at, i.before, i.after, i.tell, i.triggers::json, i.at
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[], $8::bool[], $9::text[])
	WITH ORDINALITY AS i (source, facet, key, version, at, before, after, tell, triggers, n) ORDER BY i.n`

	// claimEffects passes over what another instance is claiming at the moment.
	claimEffects = `WITH due AS (
SELECT *` + store.DueEffects + `
FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE effects e SET due_at = $4 FROM due WHERE e.id = due.id
)
SELECT ` + store.EffectColumns + ` FROM due e ORDER BY e.due_at, e.id`

	deleteEffects = `DELETE FROM effects WHERE id = ANY($1::bigint[])`
	tellNoMore    = `UPDATE effects SET tell = false WHERE id = ANY($1)`
)

// replaced locks the states of the writes that have effects and that the touch left over,
// and returns the hashes of their content by their places in the batch.
func replaced(ctx context.Context, tx pgx.Tx, b *store.Batch) (map[int]store.Hash, error) {
	var of entities
	var places []int
	for i, w := range b.Writes {
		if w.Kind == store.Content && b.Results[i] == 0 && !w.Effects.Empty() {
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

// keepEffects writes down what follows from those of the writes that brought a change.
func keepEffects(ctx context.Context, tx pgx.Tx, b *store.Batch, before map[int]store.Hash) error {
	var c columns
	var befores [][]byte
	var tells []bool
	var triggers []string
	for i, w := range b.Writes {
		hash, locked := before[i]
		if !locked || b.Results[i] != store.Changed {
			continue
		}
		args, err := w.EffectArgs(hash)
		if err != nil {
			return fmt.Errorf("the effects of %s: %w", w.Entity, err)
		}
		c.add(w)
		befores, tells, triggers = append(befores, args[5].([]byte)), append(tells, w.Effects.Tell), append(triggers, args[8].(string))
	}
	if len(tells) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, insertEffects, c.sources, c.facets, c.keys, c.versions, c.checked, befores, c.hashes, tells, triggers)
	return err
}

// ClaimEffects claims effects of a source, the earliest first, most of them at most, until
// now and the lease: what is not finished by then is claimed again. Any number of
// instances may claim at once.
func (s *Store) ClaimEffects(ctx context.Context, source string, now time.Time, lease time.Duration, most int) ([]store.Effect, error) {
	var claimed []store.Effect
	err := pgx.BeginTxFunc(ctx, s.pool, byIndex, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, claimEffects, source, now.UnixMicro(), most, now.Add(lease).UnixMicro())
		if err != nil {
			return err
		}
		claimed, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e store.Effect, err error) {
			return e, e.ScanEffect(row.Scan)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim effects of %s: %w", source, marked(err))
	}
	return claimed, nil
}

// NextEffect returns when the source's next effect may be claimed; zero if there is none.
func (s *Store) NextEffect(ctx context.Context, source string) (time.Time, error) {
	var us int64
	err := s.pool.QueryRow(ctx, store.SelectNextEffect, source).Scan(&us)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next effect of %s: %w", source, err)
	}
	return time.UnixMicro(us).UTC(), nil
}

// ToldEffects notes of effects that their changes were told, and need not be again.
func (s *Store) ToldEffects(ctx context.Context, ids []int64) error {
	err := pgx.BeginTxFunc(ctx, s.pool, byIndex, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, tellNoMore, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("note that %d changes were told: %w", len(ids), marked(err))
	}
	return nil
}

// FinishEffects deletes effects: all of each has been done. Those that are gone already
// are passed over.
func (s *Store) FinishEffects(ctx context.Context, ids []int64) error {
	// By the index they are locked in the order of their ids, whoever else deletes them.
	err := pgx.BeginTxFunc(ctx, s.pool, byIndex, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, deleteEffects, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("finish %d effects: %w", len(ids), marked(err))
	}
	return nil
}
