package shared

import (
	"context"
	"fmt"
	"slices"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Statements for snapshots. Times are stored as microseconds since 1970 UTC; 0 means no time.
const (
	// StateColumns are the columns that ScanState reads: a State without its entity.
	StateColumns = `s.version, s.hash, s.extract_version, s.encoding, s.size, s.media_type,
	s.last_fetched_at, s.last_checked_at, s.last_updated_at, s.not_found, s.etag, s.last_modified, s.visibility, s.manual, s.alias_not_found`

	// SelectSnapshot returns the state's columns and the payload, or null without a payload. It
	// looks up each table by the key instead of joining the tables. Planning a join of two
	// partitioned tables takes a quarter of the statement's time, and a connection through a pooler
	// plans the statement at each call. Arguments: source, facet, key.
	SelectSnapshot = `SELECT ` + StateColumns + `,
	coalesce(s.alias_payload, (SELECT p.payload FROM snapshot_payload p WHERE p.source = $1 AND p.facet = $2 AND p.key = $3))
FROM snapshot_state s
WHERE s.source = $1 AND s.facet = $2 AND s.key = $3`

	// ResetOtherVisibility is the part of the statement that stores a not-found result. If the stored
	// content has another visibility, it removes the content. The reason: a row has only one
	// visibility, and clients that may see the not-found result may not be allowed to see the content.
	ResetOtherVisibility = `, visibility = excluded.visibility,
	hash = CASE WHEN s.visibility = excluded.visibility THEN s.hash ELSE excluded.hash END,
	extract_version = CASE WHEN s.visibility = excluded.visibility THEN s.extract_version ELSE 0 END,
	encoding = CASE WHEN s.visibility = excluded.visibility THEN s.encoding ELSE '' END,
	size = CASE WHEN s.visibility = excluded.visibility THEN s.size ELSE 0 END,
	media_type = CASE WHEN s.visibility = excluded.visibility THEN s.media_type ELSE '' END,
	alias_payload = CASE WHEN s.visibility = excluded.visibility THEN s.alias_payload END,
	last_fetched_at = CASE WHEN s.visibility = excluded.visibility THEN s.last_fetched_at ELSE 0 END,
	last_updated_at = CASE WHEN s.visibility = excluded.visibility THEN s.last_updated_at ELSE 0 END,
	etag = CASE WHEN s.visibility = excluded.visibility THEN s.etag ELSE '' END,
	last_modified = CASE WHEN s.visibility = excluded.visibility THEN s.last_modified ELSE '' END`

	// DeleteEntity unregisters an entity. Arguments: source, facet, key.
	DeleteEntity = `DELETE FROM entities WHERE source = $1 AND facet = $2 AND key = $3`
)

// deleteStored is the list of statements that delete the snapshot and the status of an entity, and
// deleteSnapshot also its registration and undelivered events of triggers with a quiet time. Arguments
// of each: source, facet, key. The state is deleted first, in the same order as in a write, which
// prevents deadlocks. The payload and the items are deleted only if no state is stored, so content
// that a concurrent write has just stored is kept.
var (
	deleteStored   = slices.Concat([]string{store.DeleteState}, store.DeleteOrphans[:], []string{store.DeleteStatus})
	deleteSnapshot = slices.Concat(deleteStored, []string{DeleteEntity, deleteQuietTriggers})
)

// ScanState reads the state from a row. The parameter `more` has the destinations of further columns.
func ScanState(s *store.State, scan func(...any) error, more ...any) error {
	var hash []byte
	var fetched, checked, updated int64
	err := scan(append([]any{
		&s.Version, &hash, &s.ExtractVersion, &s.Encoding, &s.Size, &s.MediaType,
		&fetched, &checked, &updated, &s.NotFound, &s.ETag, &s.LastModified, &s.Visibility, &s.Manual, &s.AliasNotFound,
	}, more...)...)
	copy(s.Hash[:], hash)
	// the column alias_not_found stays true when content is stored, so it counts only together with
	// not_found
	s.AliasNotFound = s.AliasNotFound && s.NotFound
	s.FetchedAt, s.CheckedAt, s.UpdatedAt = store.FromMicros(fetched), store.FromMicros(checked), store.FromMicros(updated)
	return err
}

// snapshots deletes snapshots.
type snapshots struct{ db DB }

// Delete deletes the snapshot and the status of an entity, if they exist.
func (s snapshots) Delete(ctx context.Context, e schemas.Entity) error {
	if err := s.db.InTx(ctx, func(tx store.Tx) error { return tx.Commit(ctx, about(e, deleteStored)...) }); err != nil {
		return fmt.Errorf("delete %s: %w", e, err)
	}
	return nil
}

// DeleteSnapshot deletes the snapshot, the status and the registration of an entity, and its
// undelivered events of triggers with a quiet time. It writes the audit entry in the same transaction.
// `existed` is false if nothing was stored; then no entry is written. Dead letters and other outbox
// events are kept. A fetch in flight may store the entity again.
func (s snapshots) DeleteSnapshot(ctx context.Context, e schemas.Entity, entry store.AuditEntry) (existed bool, err error) {
	err = s.db.InTx(ctx, func(tx store.Tx) error {
		written, err := tx.Exec(ctx, about(e, deleteSnapshot)...)
		if err != nil {
			return err
		}
		if existed = slices.Max(written) > 0; !existed {
			return nil
		}
		return tx.Commit(ctx, store.Statement{Text: store.InsertAudit, Args: entry.AuditArgs()})
	})
	if err != nil {
		return false, fmt.Errorf("delete all rows of %s: %w", e, err)
	}
	return existed, nil
}

// about returns the statements with the entity as their arguments.
func about(e schemas.Entity, texts []string) []store.Statement {
	statements := make([]store.Statement, len(texts))
	for i, text := range texts {
		statements[i] = store.Statement{Text: text, Args: []any{e.Source, e.Facet, e.Key}}
	}
	return statements
}
