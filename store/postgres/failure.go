package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/shared"
)

const (
	// lockState blocks a concurrent Write of the entity until the failure is committed, so that the
	// Write's last statement sees the new status. An existing state row is locked without a change.
	// If no row exists, there is nothing to lock, so lockState inserts a row. unlockState deletes
	// that row in the same transaction, so no other transaction sees it.
	lockState = `INSERT INTO snapshot_state AS s (source, facet, key, version, hash, extract_version, encoding, size,
	last_fetched_at, last_checked_at, last_updated_at, not_found, etag, last_modified)
VALUES ($1, $2, $3, -1, '', 0, '', 0, 0, 0, 0, false, '', '')
ON CONFLICT (source, facet, key) DO UPDATE SET version = s.version WHERE false`

	unlockState = `DELETE FROM snapshot_state WHERE source = $1 AND facet = $2 AND key = $3 AND version < 0`

	selectStatuses = `SELECT i.n, ` + shared.StatusColumns + `
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS i (source, facet, key, n)
CROSS JOIN LATERAL (SELECT * FROM update_status u WHERE u.source = i.source AND u.facet = i.facet AND u.key = i.key LIMIT 1) u`

	// claimDueRetries claims due retries, and returns the rows with their values from before the
	// claim. It skips rows that another process is claiming.
	claimDueRetries = `WITH due AS (
` + shared.SelectDueRetries + `
FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE update_status u SET next_retry_at = $4 FROM due
	WHERE u.source = due.source AND u.facet = due.facet AND u.key = due.key
)
SELECT ` + shared.StatusColumns + ` FROM due u ORDER BY u.next_retry_at`
)

// Statuses returns the statuses of the entities in the given order, in one round trip. State is
// empty for an entity without a status.
func (s *Store) Statuses(ctx context.Context, keys []schemas.Entity) ([]store.Status, error) {
	statuses := make([]store.Status, len(keys))
	for i, e := range keys {
		statuses[i].Entity = e
	}
	err := forEachEntity(ctx, s.read, selectStatuses, keys, func(found *store.Status, scan func(...any) error) error {
		return shared.ScanStatus(found, scan)
	}, func(i int, found store.Status) { statuses[i] = found })
	if err != nil {
		return nil, fmt.Errorf("read %d statuses: %w", len(keys), err)
	}
	return statuses, nil
}

// WriteFailure writes, in one transaction, a status and the row of a dead letter. If deadLetter is nil,
// it writes only the status. If s.State is empty, or if the result of a later fetch is stored, it
// writes only the dead letter. A repeated call with the same arguments changes nothing.
func (s *Store) WriteFailure(ctx context.Context, status store.Status, deadLetter *deadletters.DeadLetter) error {
	e := status.Entity
	// The batch runs as one transaction. Each statement sees all transactions that were committed
	// before the statement began.
	var b pgx.Batch
	if status.State != "" {
		args, err := shared.StatusArgs(status)
		if err != nil {
			return fmt.Errorf("write the status of %s: %w", e, err)
		}
		// The states are locked in the order in which Write locks them.
		locked := []schemas.Entity{e} // entities of one source and one key
		for _, a := range status.Aliases {
			locked = append(locked, a.Entity)
		}
		slices.SortFunc(locked, func(a, b schemas.Entity) int { return strings.Compare(a.Facet, b.Facet) })
		for _, l := range locked {
			b.Queue(lockState, l.Source, l.Facet, l.Key)
		}
		b.Queue(shared.UpsertStatus, args...)
		for _, l := range locked {
			b.Queue(unlockState, l.Source, l.Facet, l.Key)
		}
		for i := range status.Aliases {
			statement, args := shared.RecheckAlias(status, i)
			b.Queue(statement, args...)
		}
		var users aliasUsers
		if users.add(e, status.AliasUsers, status.UpdatedAt.UnixMicro()); len(users.due) > 0 {
			b.Queue(wakeAliases, users.sources, users.facets, users.keys, users.due)
		}
	}
	if deadLetter != nil {
		b.Queue(deadletters.Insert, deadLetter.InsertArgs()...)
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("write the failure of %s: %w", e, classifyError(err))
	}
	return nil
}

// ClaimRetries claims at most `limit` due retries, earliest first, for the duration of the lease. A
// claimed retry that has neither succeeded nor failed when the lease ends is due again. Concurrent
// calls claim different retries.
func (s *Store) ClaimRetries(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.Status, error) {
	until := now.Add(lease).UnixMicro()
	rows, err := s.pool.Query(ctx, claimDueRetries, source, now.UnixMicro(), limit, until)
	if err != nil {
		return nil, fmt.Errorf("claim retries of %s: %w", source, err)
	}
	due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (status store.Status, err error) {
		err = shared.ScanStatus(&status, row.Scan)
		status.Until = time.UnixMicro(until).UTC()
		return status, err
	})
	if err != nil {
		return nil, fmt.Errorf("claim retries of %s: %w", source, err)
	}
	return due, nil
}
