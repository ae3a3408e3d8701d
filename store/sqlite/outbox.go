package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

const (
	selectHash        = `SELECT hash FROM snapshot_state WHERE source = $1 AND facet = $2 AND key = $3`
	insertOutboxEvent = store.InsertOutboxEvent + ` VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, '')`
	// deleteQuietTrigger deletes the undelivered event of a trigger with a quiet time, because
	// the event of a later change replaces it.
	deleteQuietTrigger = `DELETE FROM outbox WHERE source = $1 AND facet = $2 AND key = $3 AND quiet_facet = $4 AND quiet_facet <> ''
RETURNING before, due_at, latest_at`
	selectDueOutboxEvents = `SELECT ` + shared.OutboxColumns + shared.DueOutboxEvents
	claimOutboxEvent      = `UPDATE outbox SET due_at = $2 WHERE id = $1`
	postponePage          = `UPDATE outbox SET ` + shared.PostponePage + ` WHERE id = $1 AND quiet_facet = '` + store.PageRequest + `'`
	deleteOutboxEvent     = `DELETE FROM outbox WHERE id = $1 AND quiet_facet <> '` + store.PageRequest + `'`
	markPublished         = `UPDATE outbox SET publish_change = false WHERE id = $1`
)

// readReplaced returns the hash of the content that the write replaces.
func readReplaced(ctx context.Context, tx *sql.Tx, w store.Write) (before store.Hash, err error) {
	var hash []byte
	err = tx.QueryRowContext(ctx, selectHash, w.Entity.Source, w.Entity.Facet, w.Entity.Key).Scan(&hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return before, err
	}
	copy(before[:], hash)
	return before, nil
}

// writeOutboxEvents inserts the outbox events of a write that changed content.
func writeOutboxEvents(ctx context.Context, tx *sql.Tx, w store.Write, before store.Hash) error {
	rows, err := w.OutboxRows(before)
	if err != nil {
		return err
	}
	e := w.Entity
	for _, r := range rows {
		var due, latest int64
		err := tx.QueryRowContext(ctx, deleteQuietTrigger, e.Source, e.Facet, e.Key, r.QuietFacet).Scan(&r.Before, &due, &latest)
		switch {
		case err == nil:
			if due <= latest { // otherwise the earlier event is being delivered, and the new event begins a new period
				r.Due, r.Latest = min(r.Due, latest), latest
			}
			r.Before = append([]byte{}, r.Before...) // an empty blob is scanned as nil, which would be inserted as NULL
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		_, err = tx.ExecContext(ctx, insertOutboxEvent, e.Source, e.Facet, e.Key, w.Version, w.CheckedAt.UnixMicro(),
			r.Before, r.After, r.PublishChange, r.Triggers, r.Due, r.QuietFacet, r.Latest)
		if err != nil {
			return err
		}
	}
	return nil
}

// WriteOutbox stores only the outbox events of the writes. The writes must be of different entities.
func (s *Store) WriteOutbox(ctx context.Context, writes []store.Write) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		for _, w := range writes {
			if err := writeOutboxEvents(ctx, tx, w, store.Hash{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store the outbox events of %d entities: %w", len(writes), err)
	}
	return nil
}

// ClaimOutboxEvents claims at most `limit` due outbox events of a source, earliest first, for the
// duration of the lease. An event that is not deleted when the lease ends can be claimed again.
// Concurrent calls claim different events.
func (s *Store) ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.OutboxEvent, error) {
	var claimed []store.OutboxEvent
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		if claimed, err = dueOutboxEvents(ctx, tx, source, now, limit); err != nil {
			return err
		}
		for _, e := range claimed {
			if _, err := tx.ExecContext(ctx, claimOutboxEvent, e.ID, now.Add(lease).UnixMicro()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim outbox events of %s: %w", source, err)
	}
	return claimed, nil
}

func dueOutboxEvents(ctx context.Context, tx *sql.Tx, source string, now time.Time, limit int) (due []store.OutboxEvent, err error) {
	rows, err := tx.QueryContext(ctx, selectDueOutboxEvents, source, now.UnixMicro(), limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e store.OutboxEvent
		if err := shared.ScanOutboxEvent(&e, rows.Scan); err != nil {
			return nil, err
		}
		due = append(due, e)
	}
	return due, rows.Err()
}

// MarkChangesPublished records that the change messages of outbox events were published and must
// not be published again.
func (s *Store) MarkChangesPublished(ctx context.Context, ids []int64) error {
	if err := s.forEachOutboxEvent(ctx, ids, markPublished); err != nil {
		return fmt.Errorf("mark %d changes as published: %w", len(ids), err)
	}
	return nil
}

// DeleteOutboxEvents deletes delivered outbox events. It postpones events that request a page instead
// (store.PageRequest). It ignores IDs without a row.
func (s *Store) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	if err := s.forEachOutboxEvent(ctx, ids, postponePage, deleteOutboxEvent); err != nil {
		return fmt.Errorf("delete %d outbox events: %w", len(ids), err)
	}
	return nil
}

func (s *Store) forEachOutboxEvent(ctx context.Context, ids []int64, statements ...string) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			for _, statement := range statements {
				if _, err := tx.ExecContext(ctx, statement, id); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
