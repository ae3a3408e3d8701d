package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"
)

// The queries about claims and about retention, the same in every database.
const (
	// InsertClaim takes ClaimArgs.
	InsertClaim = `INSERT INTO schedule_claims (id, source, claimed_at, until, entries) VALUES ($1, $2, $3, $4, $5)`

	// SelectAbandoned takes the source and the time, and returns the id of the claim
	// whose time has been up for longest, or no row.
	SelectAbandoned = `SELECT id FROM schedule_claims WHERE source = $1 AND until <= $2 ORDER BY until LIMIT 1`

	// DeleteClaim takes the id.
	DeleteClaim = `DELETE FROM schedule_claims WHERE id = $1`

	// RenewClaim takes the id and until when.
	RenewClaim = `UPDATE schedule_claims SET until = $2 WHERE id = $1`

	// InsertWalk and SelectWalk take source and facet; MoveWalk the key, too.
	InsertWalk = `INSERT INTO retention_walks (source, facet, after_key) VALUES ($1, $2, '') ON CONFLICT (source, facet) DO NOTHING`
	SelectWalk = `SELECT after_key FROM retention_walks WHERE source = $1 AND facet = $2`
	MoveWalk   = `UPDATE retention_walks SET after_key = $3 WHERE source = $1 AND facet = $2`

	// SelectExpired looks at the next snapshots behind a key. It takes source, facet,
	// key, microseconds for content and for absences, and how many are looked at, and
	// returns how many those were, the last one's key, and one row for each that is
	// expired, or one with an empty key.
	SelectExpired = `WITH page AS (
	SELECT s.key, (` + expired + `) AS expired FROM snapshot_state s
	WHERE s.source = $1 AND s.facet = $2 AND s.key > $3 ORDER BY s.key LIMIT $6
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteExpiredState takes source, facet, key and microseconds twice, and writes a row
	// or none: the entity may have been fetched meanwhile.
	DeleteExpiredState = `DELETE FROM snapshot_state AS s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3 AND (` + expired + `)`

	// DeleteOrphan takes source, facet and key, and deletes a payload without a state.
	DeleteOrphan = `DELETE FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3
AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3)`

	// Content is kept for a time from its own fetch on, as reads judge it: a later look
	// that brought none makes it no younger. An absence has only the look.
	expired = `CASE WHEN s.encoding <> '' THEN s.last_fetched_at < $4 ELSE s.last_checked_at < $5 END`

	// SelectOldStatuses does as SelectExpired, with the statuses of entities of which
	// nothing is stored. It takes microseconds once.
	SelectOldStatuses = `WITH page AS (
	SELECT u.key, (` + oldStatus + `) AS expired FROM update_status u
	WHERE u.source = $1 AND u.facet = $2 AND u.key > $3 ORDER BY u.key LIMIT $5
), sum AS (SELECT count(*) AS n, coalesce(max(key), '') AS last FROM page)
SELECT sum.n, sum.last, coalesce(page.key, '') FROM sum LEFT JOIN page ON page.expired ORDER BY 3`

	// DeleteOldStatus takes source, facet, key and microseconds.
	DeleteOldStatus = `DELETE FROM update_status AS u WHERE u.source = $1 AND u.facet = $2 AND u.key = $3 AND (` + oldStatus + `)`

	// A retry that is due is claimed within seconds, unless nobody works for its facet any more.
	oldStatus = `u.updated_at < $4 AND (u.state <> 'RETRYING' OR u.next_retry_at < $4)
	AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = u.source AND s.facet = u.facet AND s.key = u.key)`

	// StatusWalk stands behind a facet's name in the table of walks for the one along its
	// statuses. No facet has it in its name.
	StatusWalk = "/status"
)

// entry is an Ask as it is kept in a claim, which knows the source.
type entry struct {
	Facet   string            `json:"facet"`
	Key     string            `json:"key"`
	Params  map[string]string `json:"params,omitempty"`
	Version int64             `json:"version"`
}

// NewClaim returns an empty claim with an id of its own.
func NewClaim(source string, at time.Time) Claim {
	return Claim{ID: ClaimID(), Source: source, At: time.UnixMicro(at.UnixMicro()).UTC()}
}

// ClaimID returns an id that no other claim has.
func ClaimID() string { return rand.Text() }

// ClaimArgs are what InsertClaim takes.
func (c Claim) ClaimArgs(until time.Time) ([]any, error) {
	entries := make([]entry, len(c.Asks))
	for i, a := range c.Asks {
		entries[i] = entry{a.Entity.Facet, a.Entity.Key, a.Params, a.Version}
	}
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, err
	}
	return []any{c.ID, c.Source, toMicros(c.At), toMicros(until), string(text)}, nil
}

// ScanClaim fills the claim from claimed_at and entries by scan, which is a row's
// Scan. It has its ID and Source.
func (c *Claim) ScanClaim(scan func(...any) error) error {
	var at int64
	var text []byte
	if err := scan(&at, &text); err != nil {
		return err
	}
	var entries []entry
	if err := json.Unmarshal(text, &entries); err != nil {
		return fmt.Errorf("the entries of claim %s: %w", c.ID, err)
	}
	c.At, c.Asks = fromMicros(at), make([]Request, len(entries))
	for i, e := range entries {
		c.Asks[i] = Request{Params: e.Params, Version: e.Version}
		c.Asks[i].Entity.Source, c.Asks[i].Entity.Facet, c.Asks[i].Entity.Key = c.Source, e.Facet, e.Key
	}
	return nil
}

// Moves are what becomes of the entities of a claim, column by column.
type Moves struct {
	Facets, Keys                                  []string
	Tiers, Dues, ClaimedAts, UpdatedAts, Watcheds []int64
	Changes, Reads                                []float64
	ReadAts                                       []int64
}

// Decide has decide decide on each candidate, in their order, and returns what is to be
// written; what is asked for is added to the claim.
func (c *Claim) Decide(candidates []Candidate, decide func(Candidate) Move) *Moves {
	var to Moves
	for _, candidate := range candidates {
		m := decide(candidate)
		h := m.History
		to.Facets, to.Keys = append(to.Facets, candidate.Entity.Facet), append(to.Keys, candidate.Entity.Key)
		to.Tiers, to.Dues = append(to.Tiers, int64(m.Tier)), append(to.Dues, toMicros(m.Due))
		to.ClaimedAts, to.UpdatedAts = append(to.ClaimedAts, toMicros(h.ClaimedAt)), append(to.UpdatedAts, toMicros(h.UpdatedAt))
		to.Changes, to.Watcheds = append(to.Changes, h.Changes), append(to.Watcheds, h.Watched.Microseconds())
		to.Reads, to.ReadAts = append(to.Reads, h.Reads), append(to.ReadAts, toMicros(h.ReadAt))
		if m.Ask {
			c.Asks = append(c.Asks, Request{Entity: candidate.Entity, Params: candidate.Params, Version: candidate.State.Version})
		}
	}
	return &to
}

// Row are the values of the n-th move in the order of MoveEntity's parameters.
func (m *Moves) Row(source string, n int) []any {
	return []any{
		source, m.Facets[n], m.Keys[n], m.Tiers[n], m.Dues[n], m.ClaimedAts[n], m.UpdatedAts[n],
		m.Changes[n], m.Watcheds[n], m.Reads[n], m.ReadAts[n],
	}
}

// Columns are the moves as the arrays that unnest takes, in the same order.
func (m *Moves) Columns(source string) []any {
	return []any{source, m.Facets, m.Keys, m.Tiers, m.Dues, m.ClaimedAts, m.UpdatedAts, m.Changes, m.Watcheds, m.Reads, m.ReadAts}
}
