package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

const (
	updateEntity = `UPDATE entities
SET tier = $4, due_at = $5, claimed_at = $6, updated_at = $7, changes = $8, watched = $9, reads = $10, read_at = $11
WHERE source = $1 AND facet = $2 AND key = $3`

	selectPayload = `SELECT payload FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3`

	takeOverClaim = `UPDATE schedule_claims SET id = $3, until = $4
WHERE id = (` + prefetched.SelectExpiredClaim + `)
RETURNING claimed_at, entries`
)

// ClaimEntities claims at most `limit` due entities of a source, earliest first. It calls decide once
// per entity; decide must have no side effects, because the transaction may fail. The requests to
// enqueue are stored as a claim until FinishClaim, or until the lease ends and another scheduler takes
// the claim over. Without requests no claim is stored and its ID is empty. The function "content"
// selects the facets whose payloads are read too; nil means none. Everything is committed in one
// transaction.
func (s prefetchedStore) ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration,
	content func(facet string) bool, decide func(prefetched.Candidate) prefetched.Decision,
) (prefetched.Claim, error) {
	claim := prefetched.NewClaim(source, now)
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		candidates, err := candidates(ctx, tx, prefetched.SelectDueEntities, content, source, now.UnixMicro(), limit)
		if err != nil {
			return err
		}
		moves := claim.Decide(candidates, decide)
		for n := range candidates {
			if _, err := tx.ExecContext(ctx, updateEntity, moves.Row(source, n)...); err != nil {
				return err
			}
		}
		if len(claim.Requests) == 0 {
			return nil
		}
		args, err := claim.ClaimArgs(now.Add(lease))
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, prefetched.InsertClaim, args...)
		return err
	})
	if err != nil {
		return prefetched.Claim{}, fmt.Errorf("claim entities of %s: %w", source, err)
	}
	if len(claim.Requests) == 0 {
		claim.ID = ""
	}
	return claim, nil
}

// EntitiesDueAfter returns at most `limit` entities of a source that are due after a time, earliest
// first, without locking them. The function `content` selects the facets whose payloads are read too;
// nil means none.
func (s prefetchedStore) EntitiesDueAfter(ctx context.Context, source string, after time.Time, limit int, content func(facet string) bool) (all []prefetched.Candidate, err error) {
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		all, err = candidates(ctx, tx, prefetched.SelectEntitiesDueAfter, content, source, after.UnixMicro(), limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read entities of %s due after %v: %w", source, after, err)
	}
	return all, nil
}

// candidates runs a query of registered entities. It adds to each entity its snapshot's state
// (versions, hashes and times) and the status of its last request. If `content` returns true for
// the entity's facet, it adds the snapshot's content too.
func candidates(ctx context.Context, tx *sql.Tx, query string, content func(facet string) bool, args ...any) ([]prefetched.Candidate, error) {
	due, err := shared.Collect(ctx, transaction{tx}, (*prefetched.RegisteredEntity).ScanEntity, query, args...)
	if err != nil {
		return nil, err
	}
	found := make([]prefetched.Candidate, len(due))
	for i, r := range due {
		c := &found[i]
		e := r.Entity
		c.RegisteredEntity, c.State.Entity, c.Status.Entity = r, e, e
		err := shared.ScanState(&c.State, tx.QueryRowContext(ctx, selectState, e.Source, e.Facet, e.Key).Scan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read %s: %w", e, err)
		}
		err = shared.ScanStatus(&c.Status, tx.QueryRowContext(ctx, selectStatus, e.Source, e.Facet, e.Key).Scan)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, fmt.Errorf("read the status of %s: %w", e, err)
		}
		if content == nil || !c.State.HasContent() || !content(e.Facet) {
			continue
		}
		if err := tx.QueryRowContext(ctx, selectPayload, e.Source, e.Facet, e.Key).Scan(&c.Payload); err != nil {
			return nil, fmt.Errorf("read the content of %s: %w", e, err)
		}
	}
	return found, nil
}

// TakeOverClaim takes over an expired claim of a source: the claim that expired first. The claim
// gets a new ID and a new lease. The second result is false if no claim has expired. If several
// calls run concurrently, only one of them gets the claim.
func (s prefetchedStore) TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (prefetched.Claim, bool, error) {
	claim := prefetched.Claim{ID: prefetched.ClaimID(), Source: source}
	err := claim.ScanClaim(s.db.QueryRowContext(ctx, takeOverClaim, source, now.UnixMicro(), claim.ID, now.Add(lease).UnixMicro()).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return prefetched.Claim{}, false, nil
	}
	if err != nil {
		return prefetched.Claim{}, false, fmt.Errorf("take over a claim of %s: %w", source, err)
	}
	return claim, true, nil
}
