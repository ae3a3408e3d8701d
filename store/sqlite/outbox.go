package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

const (
	selectHash        = `SELECT hash FROM snapshot_state WHERE source = $1 AND facet = $2 AND key = $3`
	insertOutboxEvent = store.InsertOutboxEvent + ` VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	// deleteQuietTrigger takes away the effect that waits for quiet: a later change replaces it.
	deleteQuietTrigger = `DELETE FROM outbox WHERE source = $1 AND facet = $2 AND key = $3 AND quiet_facet = $4 AND quiet_facet <> ''
RETURNING before, latest_at`
	selectDueOutboxEvents = `SELECT ` + store.OutboxColumns + store.DueOutboxEvents
	claimOutboxEvent      = `UPDATE outbox SET due_at = $2 WHERE id = $1`
	deleteOutboxEvent     = `DELETE FROM outbox WHERE id = $1`
	markPublished         = `UPDATE outbox SET publish_change = false WHERE id = $1`
)

// readReplaced returns the hash of the content that the write is about to replace.
func readReplaced(ctx context.Context, tx *sql.Tx, w store.Write) (before store.Hash, err error) {
	var hash []byte
	err = tx.QueryRowContext(ctx, selectHash, w.Entity.Source, w.Entity.Facet, w.Entity.Key).Scan(&hash)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return before, err
	}
	copy(before[:], hash)
	return before, nil
}

// writeOutboxEvents writes down what follows from a write that brought a change.
func writeOutboxEvents(ctx context.Context, tx *sql.Tx, w store.Write, before store.Hash) error {
	rows, err := w.OutboxRows(before)
	if err != nil {
		return err
	}
	e := w.Entity
	for _, r := range rows {
		err := tx.QueryRowContext(ctx, deleteQuietTrigger, e.Source, e.Facet, e.Key, r.QuietFacet).Scan(&r.Before, &r.Latest)
		switch {
		case err == nil:
			r.Due = min(r.Due, r.Latest)
			r.Before = append([]byte{}, r.Before...) // an empty one is read as nil, which is NULL
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

// ClaimOutboxEvents claims effects of a source, the earliest first, most of them at most, until
// now and the lease: what is not finished by then is claimed again.
func (s *Store) ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, most int) ([]store.OutboxEvent, error) {
	var claimed []store.OutboxEvent
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		if claimed, err = dueOutboxEvents(ctx, tx, source, now, most); err != nil {
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
		return nil, fmt.Errorf("claim effects of %s: %w", source, err)
	}
	return claimed, nil
}

func dueOutboxEvents(ctx context.Context, tx *sql.Tx, source string, now time.Time, most int) (due []store.OutboxEvent, err error) {
	rows, err := tx.QueryContext(ctx, selectDueOutboxEvents, source, now.UnixMicro(), most)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e store.OutboxEvent
		if err := e.ScanOutboxEvent(rows.Scan); err != nil {
			return nil, err
		}
		due = append(due, e)
	}
	return due, rows.Err()
}

// NextOutboxTime returns when the source's next effect may be claimed; zero if there is none.
func (s *Store) NextOutboxTime(ctx context.Context, source string) (time.Time, error) {
	var us int64
	err := s.db.QueryRowContext(ctx, store.SelectNextOutboxTime, source).Scan(&us)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the next effect of %s: %w", source, err)
	}
	return time.UnixMicro(us).UTC(), nil
}

// MarkChangesPublished notes of effects that their changes were told, and need not be again.
func (s *Store) MarkChangesPublished(ctx context.Context, ids []int64) error {
	if err := s.forEachOutboxEvent(ctx, markPublished, ids); err != nil {
		return fmt.Errorf("note that %d changes were told: %w", len(ids), err)
	}
	return nil
}

// DeleteOutboxEvents deletes effects: all of each has been done. Those that are gone already
// are passed over.
func (s *Store) DeleteOutboxEvents(ctx context.Context, ids []int64) error {
	if err := s.forEachOutboxEvent(ctx, deleteOutboxEvent, ids); err != nil {
		return fmt.Errorf("finish %d effects: %w", len(ids), err)
	}
	return nil
}

func (s *Store) forEachOutboxEvent(ctx context.Context, statement string, ids []int64) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, statement, id); err != nil {
				return err
			}
		}
		return nil
	})
}
