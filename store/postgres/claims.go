package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

const (
	claimDueEntities = prefetched.SelectDueEntities + ` FOR UPDATE SKIP LOCKED`

	updateEntities = `UPDATE entities e
SET tier = i.tier, due_at = i.due_at, claimed_at = i.claimed_at, updated_at = i.updated_at,
	changes = i.changes, watched = i.watched, reads = i.reads, read_at = i.read_at
FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::double precision[], $9::bigint[], $10::double precision[], $11::bigint[])
	AS i (facet, key, tier, due_at, claimed_at, updated_at, changes, watched, reads, read_at)
WHERE e.source = $1 AND e.facet = i.facet AND e.key = i.key`

	// takeOverClaim changes the claim's ID, so that a former holder that still runs loses the
	// claim.
	takeOverClaim = `WITH expired AS (
` + prefetched.SelectExpiredClaim + `
FOR UPDATE SKIP LOCKED
)
UPDATE schedule_claims c SET id = $3, until = $4 FROM expired WHERE c.id = expired.id
RETURNING c.claimed_at, c.entries`
)

// claiming begins a transaction that PostgreSQL ends if it is idle for 10 s. Without this limit, a
// scheduler process that is suspended during a claim would keep rows locked until its connection
// breaks.
var claiming = pgx.TxOptions{BeginQuery: indexOnly.BeginQuery + `; SET LOCAL idle_in_transaction_session_timeout = '10s'`}

// ClaimEntities claims at most `limit` due entities of a source, earliest first. It calls decide once
// per entity; decide must have no side effects, because the transaction may fail. The requests to
// enqueue are stored as a claim until FinishClaim, or until the lease ends and another scheduler takes
// the claim over. Without requests no claim is stored and its ID is empty. The function "content"
// selects the facets whose payloads are read too; nil means none.
//
// Everything is committed in one transaction, so a scheduler that crashes at any point loses
// nothing. Requests that it had enqueued may be enqueued again; they are coalesced. If only the
// response to the commit is lost, the claim is stored and is taken over after its lease. A single
// SQL statement is not possible, because decide is Go code. Concurrent calls claim different
// entities and do not wait for each other.
func (s prefetchedStore) ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration,
	content func(facet string) bool, decide func(prefetched.Candidate) prefetched.Decision,
) (prefetched.Claim, error) {
	claim := prefetched.NewClaim(source, now)
	err := pgx.BeginTxFunc(ctx, s.pool, claiming, func(tx pgx.Tx) error {
		candidates, err := candidates(ctx, tx, claimDueEntities, content, source, now.UnixMicro(), limit)
		if err != nil || len(candidates) == 0 {
			return err
		}
		var b pgx.Batch
		b.Queue(updateEntities, claim.Decide(candidates, decide).Columns(source)...)
		if len(claim.Requests) > 0 {
			args, err := claim.ClaimArgs(now.Add(lease))
			if err != nil {
				return err
			}
			b.Queue(prefetched.InsertClaim, args...)
		}
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return prefetched.Claim{}, fmt.Errorf("claim entities of %s: %w", source, classifyError(err))
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
	err = pgx.BeginTxFunc(ctx, s.pool, indexOnly, func(tx pgx.Tx) error {
		all, err = candidates(ctx, tx, prefetched.SelectEntitiesDueAfter, content, source, after.UnixMicro(), limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read entities of %s due after %v: %w", source, after, classifyError(err))
	}
	return all, nil
}

// candidates runs a query of registered entities and adds the state and the status of each entity.
func candidates(ctx context.Context, tx pgx.Tx, query string, content func(facet string) bool, args ...any) ([]prefetched.Candidate, error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c prefetched.Candidate, err error) {
		return c, c.ScanEntity(row.Scan)
	})
	if err != nil || len(found) == 0 {
		return nil, err
	}
	keys := make([]schemas.Entity, len(found))
	for i := range found {
		c := &found[i]
		keys[i], c.State.Entity, c.Status.Entity = c.Entity, c.Entity, c.Entity
	}
	err = forEachEntity(ctx, readFrom(tx), selectStates, keys, func(one *store.State, scan func(...any) error) error {
		return shared.ScanState(one, scan)
	}, func(i int, one store.State) {
		one.Entity = keys[i]
		found[i].State = one
	})
	if err != nil {
		return nil, err
	}
	err = forEachEntity(ctx, readFrom(tx), selectStatuses, keys, func(one *store.Status, scan func(...any) error) error {
		return shared.ScanStatus(one, scan)
	}, func(i int, one store.Status) { found[i].Status = one })
	if err != nil || content == nil {
		return found, err
	}
	return found, addPayloads(ctx, tx, found, content)
}

// addPayloads reads the payload of each candidate for prefetching if the function `wanted` returns
// true for the candidate's facet.
func addPayloads(ctx context.Context, tx pgx.Tx, candidates []prefetched.Candidate, wanted func(facet string) bool) error {
	var keys []schemas.Entity
	var at []int
	for i, c := range candidates {
		if c.State.HasContent() && wanted(c.Entity.Facet) {
			keys, at = append(keys, c.Entity), append(at, i)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return forEachEntity(ctx, readFrom(tx), selectSnapshots, keys, func(found *store.Snapshot, scan func(...any) error) error {
		return shared.ScanState(&found.State, scan, &found.Payload)
	}, func(i int, found store.Snapshot) { candidates[at[i]].Payload = found.Payload })
}

// TakeOverClaim takes over an expired claim of a source: the claim that expired first. The claim
// gets a new ID and a new lease. The second result is false if no claim has expired. If several
// calls run concurrently, only one of them gets the claim.
func (s prefetchedStore) TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (prefetched.Claim, bool, error) {
	claim := prefetched.Claim{ID: prefetched.ClaimID(), Source: source}
	err := claim.ScanClaim(s.pool.QueryRow(ctx, takeOverClaim, source, now.UnixMicro(), claim.ID, now.Add(lease).UnixMicro()).Scan)
	if errors.Is(err, pgx.ErrNoRows) {
		return prefetched.Claim{}, false, nil
	}
	if err != nil {
		return prefetched.Claim{}, false, fmt.Errorf("take over a claim of %s: %w", source, err)
	}
	return claim, true, nil
}
