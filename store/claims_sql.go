package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"
)

// Statements for claims and for retention, shared by both databases.
const (
	// InsertClaim takes ClaimArgs.
	InsertClaim = `INSERT INTO schedule_claims (id, source, claimed_at, until, entries) VALUES ($1, $2, $3, $4, $5)`

	// SelectExpiredClaim returns the ID of the claim that expired first, or no row. Arguments:
	// source, time.
	SelectExpiredClaim = `SELECT id FROM schedule_claims WHERE source = $1 AND until <= $2 ORDER BY until LIMIT 1`

	// DeleteClaim takes the ID.
	DeleteClaim = `DELETE FROM schedule_claims WHERE id = $1`

	// RenewClaim takes the ID and the new end.
	RenewClaim = `UPDATE schedule_claims SET until = $2 WHERE id = $1`

	// InsertRetentionWalk and SelectRetentionWalk take source and facet; UpdateRetentionWalk also
	// the key.
	InsertRetentionWalk = `INSERT INTO retention_walks (source, facet, after_key) VALUES ($1, $2, '') ON CONFLICT (source, facet) DO NOTHING`
	SelectRetentionWalk = `SELECT after_key FROM retention_walks WHERE source = $1 AND facet = $2`
	UpdateRetentionWalk = `UPDATE retention_walks SET after_key = $3 WHERE source = $1 AND facet = $2`

	// SelectExpired examines the next snapshots behind a key. It returns the number of examined
	// rows, the last key, and one row for each expired snapshot, or one row with an empty key.
	// Arguments: source, facet, key, the times before which content and absences expire, limit.
	SelectExpired = `WITH page AS (
	SELECT s.key, (` + expiredCondition + `) AS expired FROM snapshot_state s
	WHERE s.source = $1 AND s.facet = $2 AND s.key > $3 ORDER BY s.key LIMIT $6
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteExpiredState writes one row, or none if the entity was fetched since. Arguments:
	// source, facet, key, the times of SelectExpired.
	DeleteExpiredState = `DELETE FROM snapshot_state AS s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND (` + expiredCondition + `)`

	// DeleteOrphan deletes a payload without a state. Arguments: source, facet, key.
	DeleteOrphan = `DELETE FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3
AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3)`

	// Content expires by the time of its own fetch: a later check without content does not extend
	// it. An absence expires by the time of its check.
	expiredCondition = `CASE WHEN s.encoding <> '' THEN s.last_fetched_at < $4 ELSE s.last_checked_at < $5 END`

	// SelectOldStatuses does the same for statuses of entities without a snapshot. Arguments:
	// source, facet, key, time, limit.
	SelectOldStatuses = `WITH page AS (
	SELECT u.key, (` + oldStatusCondition + `) AS expired FROM update_status u
	WHERE u.source = $1 AND u.facet = $2 AND u.key > $3 ORDER BY u.key LIMIT $5
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteOldStatus takes source, facet, key and time.
	DeleteOldStatus = `DELETE FROM update_status AS u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3 AND (` + oldStatusCondition + `)`

	// A due retry is claimed within seconds unless no worker handles its facet any more.
	oldStatusCondition = `u.updated_at < $4 AND (u.state <> 'RETRYING' OR u.next_retry_at < $4)
	AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = u.source AND s.facet = u.facet AND s.key = u.key)`

	// StatusWalkSuffix is appended to a facet's name for the walk along its statuses. No facet name
	// contains it.
	StatusWalkSuffix = "/status"
)

// storedRequest is the JSON form of a ClaimedRequest. The claim has the source.
type storedRequest struct {
	Facet   string            `json:"facet"`
	Key     string            `json:"key"`
	Params  map[string]string `json:"params,omitempty"`
	Version int64             `json:"version"`
}

// NewClaim returns an empty claim with a new ID.
func NewClaim(source string, at time.Time) Claim {
	return Claim{ID: ClaimID(), Source: source, At: time.UnixMicro(at.UnixMicro()).UTC()}
}

// ClaimID returns a unique ID.
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

// ScanClaim reads claimed_at and entries from a row. ID and Source must be set.
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

// Decisions are the decisions for the entities of a claim, as columns.
type Decisions struct {
	Facets, Keys                                  []string
	Tiers, Dues, ClaimedAts, UpdatedAts, Watcheds []int64
	Changes, Reads                                []float64
	ReadAts                                       []int64
}

// Decide calls decide for each candidate in order and returns the decisions. It appends to the
// claim the requests to enqueue.
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

// Row returns the n-th decision in the order of the parameters of updateEntity (SQLite).
func (m *Decisions) Row(source string, n int) []any {
	return []any{
		source, m.Facets[n], m.Keys[n], m.Tiers[n], m.Dues[n], m.ClaimedAts[n], m.UpdatedAts[n],
		m.Changes[n], m.Watcheds[n], m.Reads[n], m.ReadAts[n],
	}
}

// Columns returns the decisions as the arrays of updateEntities (PostgreSQL).
func (m *Decisions) Columns(source string) []any {
	return []any{source, m.Facets, m.Keys, m.Tiers, m.Dues, m.ClaimedAts, m.UpdatedAts, m.Changes, m.Watcheds, m.Reads, m.ReadAts}
}
