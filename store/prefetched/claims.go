package prefetched

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// Statements for claims, shared by both databases.
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
	return []any{c.ID, c.Source, store.ToMicros(c.At), store.ToMicros(until), string(text)}, nil
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
	c.At, c.Requests = store.FromMicros(at), make([]ClaimedRequest, len(entries))
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
		to.Tiers, to.Dues = append(to.Tiers, int64(m.Tier)), append(to.Dues, store.ToMicros(m.Due))
		to.ClaimedAts, to.UpdatedAts = append(to.ClaimedAts, store.ToMicros(h.ClaimedAt)), append(to.UpdatedAts, store.ToMicros(h.UpdatedAt))
		to.Changes, to.Watcheds = append(to.Changes, h.Changes), append(to.Watcheds, h.Watched.Microseconds())
		to.Reads, to.ReadAts = append(to.Reads, h.Reads), append(to.ReadAts, store.ToMicros(h.ReadAt))
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
