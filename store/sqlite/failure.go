package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/shared"
)

const (
	selectStatus = `SELECT ` + shared.StatusColumns + ` FROM update_status u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3`
	claimRetry   = `UPDATE update_status SET next_retry_at = $4 WHERE source = $1 AND facet = $2 AND key = $3`
)

// Statuses returns the statuses of the entities in the given order. State is empty for an entity
// without a status.
func (s *Store) Statuses(ctx context.Context, entities []schemas.Entity) ([]store.Status, error) {
	statuses := make([]store.Status, len(entities))
	for i, e := range entities {
		statuses[i].Entity = e
		err := shared.ScanStatus(&statuses[i], s.db.QueryRowContext(ctx, selectStatus, e.Source, e.Facet, e.Key).Scan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read the status of %s: %w", e, err)
		}
	}
	return statuses, nil
}

// WriteFailure writes, in one transaction, a status and the row of a dead letter. If deadLetter is nil,
// it writes only the status. If s.State is empty, or if the result of a later fetch is stored, it
// writes only the dead letter. A repeated call with the same arguments changes nothing.
func (s *Store) WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		if status.State != "" {
			args, err := shared.StatusArgs(status)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, shared.UpsertStatus, args...); err != nil {
				return err
			}
			for i := range status.Aliases {
				statement, args := shared.RecheckAlias(status, i)
				if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
					return err
				}
			}
			if err := wakeAliasUsers(ctx, tx, status.Entity, status.AliasUsers, status.UpdatedAt); err != nil {
				return err
			}
		}
		if deadLetter == nil {
			return nil
		}
		_, err := tx.ExecContext(ctx, deadletters.Insert, deadLetter.InsertArgs()...)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the failure of %s: %w", status.Entity, err)
	}
	return nil
}

// ClaimRetries claims at most `limit` due retries, earliest first, for the duration of the lease. A
// claimed retry that has neither succeeded nor failed when the lease ends is due again. Concurrent
// calls claim different retries.
func (s *Store) ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error) {
	until := time.UnixMicro(now.Add(lease).UnixMicro()).UTC()
	var due []store.Status
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		if due, err = dueRetries(ctx, tx, source, now, limit); err != nil {
			return err
		}
		for i := range due {
			due[i].Until = until
			e := due[i].Entity
			if _, err := tx.ExecContext(ctx, claimRetry, e.Source, e.Facet, e.Key, until.UnixMicro()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("claim retries of %s: %w", source, err)
	}
	return due, nil
}

func dueRetries(ctx context.Context, tx *sql.Tx, source string, now time.Time, limit int) (due []store.Status, err error) {
	rows, err := tx.QueryContext(ctx, shared.SelectDueRetries, source, now.UnixMicro(), limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var status store.Status
		if err := shared.ScanStatus(&status, rows.Scan); err != nil {
			return nil, err
		}
		due = append(due, status)
	}
	return due, rows.Err()
}
