package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"
)

// Statements for claims and for retention, shared by both databases.
const (
	// InsertClaim inserts a claim. Arguments: Claim.ClaimArgs.
	InsertClaim = `INSERT INTO schedule_claims (id, source, claimed_at, until, entries) VALUES ($1, $2, $3, $4, $5)`

	// SelectExpiredClaim returns the ID of the claim that expired first, or no row. Arguments:
	// source, time.
	SelectExpiredClaim = `SELECT id FROM schedule_claims WHERE source = $1 AND until <= $2 ORDER BY until LIMIT 1`

	// DeleteClaim deletes a claim. Argument: id.
	DeleteClaim = `DELETE FROM schedule_claims WHERE id = $1`

	// RenewClaim extends a claim. Arguments: id, new end in microseconds.
	RenewClaim = `UPDATE schedule_claims SET until = $2 WHERE id = $1`

	// InsertRetentionWalk, SelectRetentionWalk and UpdateRetentionWalk write and read the last key
	// that the deletion of a facet's expired rows has examined. Arguments: source, facet;
	// UpdateRetentionWalk also takes the key.
	InsertRetentionWalk = `INSERT INTO retention_walks (source, facet, after_key) VALUES ($1, $2, '') ON CONFLICT (source, facet) DO NOTHING`
	SelectRetentionWalk = `SELECT after_key FROM retention_walks WHERE source = $1 AND facet = $2`
	UpdateRetentionWalk = `UPDATE retention_walks SET after_key = $3 WHERE source = $1 AND facet = $2`

	// SelectExpired examines the next snapshots of a facet, in key order, after a given key. It
	// returns one row per expired snapshot, or one row with an empty key if none has expired.
	// Columns: number of examined snapshots, last examined key, key of the expired snapshot.
	// Arguments: source, facet, key, the times before which content and not-found results are expired, limit.
	SelectExpired = `WITH page AS (
	SELECT s.key, (` + expiredCondition + `) AS expired FROM snapshot_state s
	WHERE s.source = $1 AND s.facet = $2 AND s.key > $3 ORDER BY s.key LIMIT $6
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteExpiredState deletes the state of one entity, unless the entity was fetched after
	// SelectExpired. Arguments: source, facet, key, and the two times of SelectExpired.
	DeleteExpiredState = `DELETE FROM snapshot_state AS s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND (` + expiredCondition + `)`

	deleteOrphanPayload    = `DELETE FROM snapshot_payload` + withoutState
	deleteOrphanItems      = `DELETE FROM items` + withoutState
	deleteOrphanWalkPages  = `DELETE FROM walk_pages` + withoutState
	deleteOrphanCollection = `DELETE FROM collections` + withoutState

	withoutState = ` WHERE source = $1 AND facet = $2 AND key = $3
AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3)`

	// The retention period of content begins at the fetch that returned it. A later fetch that
	// returned no content (NotModified or KindNotFound) does not extend the period. The period of an
	// not-found result begins at its last check.
	expiredCondition = `CASE WHEN s.encoding <> '' THEN s.last_fetched_at < $4 ELSE s.last_checked_at < $5 END`

	// SelectOldStatuses examines the next statuses of a facet like SelectExpired examines snapshots,
	// and returns the old statuses of entities without a snapshot. Arguments: source, facet, key,
	// the time before which statuses are old, limit.
	SelectOldStatuses = `WITH page AS (
	SELECT u.key, (` + oldStatusCondition + `) AS expired FROM update_status u
	WHERE u.source = $1 AND u.facet = $2 AND u.key > $3 ORDER BY u.key LIMIT $5
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteOldStatus deletes the status of one entity if it is old (oldStatusCondition).
	// Arguments: source, facet, key, the time before which statuses are old.
	DeleteOldStatus = `DELETE FROM update_status AS u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3 AND (` + oldStatusCondition + `)`

	// A status is old if it was updated before the time $4 and the entity has no snapshot. A
	// RETRYING status is old only if its retry was also due before $4. Workers claim due retries
	// within seconds, so a retry that was due before $4 belongs to a facet that no worker handles
	// any more.
	oldStatusCondition = `u.updated_at < $4 AND (u.state <> 'RETRYING' OR u.next_retry_at < $4)
	AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = u.source AND s.facet = u.facet AND s.key = u.key)`

	// StatusWalkSuffix distinguishes the two rows of a facet in retention_walks: in the row for the
	// facet's statuses, the facet's name ends in this suffix. No facet name contains it.
	StatusWalkSuffix = "/status"
)

// storedRequest is the JSON form of a ClaimedRequest. It has no source, because the claim has the
// source of all its requests.
type storedRequest struct {
	Facet   string            `json:"facet"`
	Key     string            `json:"key"`
	Params  map[string]string `json:"params,omitempty"`
	Version int64             `json:"version"`
}

// NewClaim returns an empty claim of the source with a new ID.
func NewClaim(source string, at time.Time) Claim {
	return Claim{ID: ClaimID(), Source: source, At: time.UnixMicro(at.UnixMicro()).UTC()}
}

// ClaimID returns a new unique ID of a claim.
func ClaimID() string { return rand.Text() }

// ClaimArgs returns the arguments of InsertClaim.
func (c Claim) ClaimArgs(until time.Time) ([]any, error) {
	entries := make([]storedRequest, len(c.Requests))
	for i, a := range c.Requests {
		entries[i] = storedRequest{a.Entity.Facet, a.Entity.Key, a.Params, a.Version}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	return []any{c.ID, c.Source, toMicros(c.At), toMicros(until), string(text)}, nil
}

// ScanClaim reads claimed_at and entries from a row. The caller must have set ID and Source.
func (c *Claim) ScanClaim(scan func(...any) error) error {
	var at int64
	var text []byte
	if err := scan(&at, &text); err != nil {
		return err
	}
	var entries []storedRequest
	if err := json.Unmarshal(text, &entries); err != nil {
		return fmt.Errorf("decode the entries of claim %s: %w", c.ID, err)
	}
	c.At, c.Requests = fromMicros(at), make([]ClaimedRequest, len(entries))
	for i, e := range entries {
		c.Requests[i] = ClaimedRequest{Params: e.Params, Version: e.Version}
		c.Requests[i].Entity.Source, c.Requests[i].Entity.Facet, c.Requests[i].Entity.Key = c.Source, e.Facet, e.Key
	}
	return nil
}

// Decisions holds the scheduler's decisions for the entities of a claim: one slice per column of
// the table entities, with one element per entity.
type Decisions struct {
	Facets, Keys                                  []string
	Tiers, Dues, ClaimedAts, UpdatedAts, Watcheds []int64
	Changes, Reads                                []float64
	ReadAts                                       []int64
}

// Decide calls `decide` for each candidate in order and returns the decisions. It appends to the claim
// the requests to enqueue.
func (c *Claim) Decide(candidates []Candidate, decide func(Candidate) Decision) *Decisions {
	var to Decisions
	for _, candidate := range candidates {
		m := decide(candidate)
		h := m.History
		to.Facets, to.Keys = append(to.Facets, candidate.Entity.Facet), append(to.Keys, candidate.Entity.Key)
		to.Tiers, to.Dues = append(to.Tiers, int64(m.Tier)), append(to.Dues, toMicros(m.Due))
		to.ClaimedAts, to.UpdatedAts = append(to.ClaimedAts, toMicros(h.ClaimedAt)), append(to.UpdatedAts, toMicros(h.UpdatedAt))
		to.Changes, to.Watcheds = append(to.Changes, h.Changes), append(to.Watcheds, h.Watched.Microseconds())
		to.Reads, to.ReadAts = append(to.Reads, h.Reads), append(to.ReadAts, toMicros(h.ReadAt))
		if m.Enqueue {
			c.Requests = append(c.Requests, ClaimedRequest{Entity: candidate.Entity, Params: candidate.Params, Version: candidate.State.Version})
		}
	}
	return &to
}

// Row returns the n-th decision as the arguments of the statement updateEntity of store/sqlite.
func (m *Decisions) Row(source string, n int) []any {
	return []any{
		source, m.Facets[n], m.Keys[n], m.Tiers[n], m.Dues[n], m.ClaimedAts[n], m.UpdatedAts[n],
		m.Changes[n], m.Watcheds[n], m.Reads[n], m.ReadAts[n],
	}
}

// Columns returns the decisions as the array arguments of the statement updateEntities of
// store/postgres.
func (m *Decisions) Columns(source string) []any {
	return []any{source, m.Facets, m.Keys, m.Tiers, m.Dues, m.ClaimedAts, m.UpdatedAts, m.Changes, m.Watcheds, m.Reads, m.ReadAts}
}

// DeleteOrphans are the statements that delete the payload and the items of an entity whose row in
// snapshot_state was deleted. Arguments of each: source, facet, key.
var DeleteOrphans = [...]string{deleteOrphanPayload, deleteOrphanItems, deleteOrphanWalkPages, deleteOrphanCollection}
