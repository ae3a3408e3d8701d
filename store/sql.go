package store

import "time"

// The queries that are the same in every database. Times are stored as
// microseconds since 1970 UTC, 0 for none.
const (
	// StateColumns are those of a State after its entity, in the order in which
	// ScanState takes them.
	StateColumns = `s.version, s.hash, s.extract_version, s.encoding, s.size,
	s.last_fetched_at, s.last_checked_at, s.last_updated_at, s.absent, s.etag, s.last_modified, s.visibility, s.manual`

	// SelectSnapshot takes source, facet and key, and returns the state's columns
	// and the payload, null if there is none.
	// Each table is looked up by the parameters themselves: planning the join of two
	// partitioned tables cost a quarter of the whole look (statements are planned each
	// time, since PgBouncer keeps none).
	SelectSnapshot = `SELECT ` + StateColumns + `,
	(SELECT p.payload FROM snapshot_payload p WHERE p.source = $1 AND p.facet = $2 AND p.key = $3)
FROM snapshot_state s
WHERE s.source = $1 AND s.facet = $2 AND s.key = $3`

	// ResetOtherVisibility ends, in the upsert of an absence as s, content of another visibility, of
	// which what is inserted has none: who may see the absence may not see that, or the
	// other way round, and a row has one visibility.
	ResetOtherVisibility = `, visibility = excluded.visibility,
	hash = CASE WHEN s.visibility = excluded.visibility THEN s.hash ELSE excluded.hash END,
	extract_version = CASE WHEN s.visibility = excluded.visibility THEN s.extract_version ELSE 0 END,
	encoding = CASE WHEN s.visibility = excluded.visibility THEN s.encoding ELSE '' END,
	size = CASE WHEN s.visibility = excluded.visibility THEN s.size ELSE 0 END,
	last_fetched_at = CASE WHEN s.visibility = excluded.visibility THEN s.last_fetched_at ELSE 0 END,
	last_updated_at = CASE WHEN s.visibility = excluded.visibility THEN s.last_updated_at ELSE 0 END,
	etag = CASE WHEN s.visibility = excluded.visibility THEN s.etag ELSE '' END,
	last_modified = CASE WHEN s.visibility = excluded.visibility THEN s.last_modified ELSE '' END`

	// DeletePayload and DeleteState take source, facet and key.
	DeletePayload = `DELETE FROM snapshot_payload WHERE source = $1 AND facet = $2 AND key = $3`
	DeleteState   = `DELETE FROM snapshot_state WHERE source = $1 AND facet = $2 AND key = $3`
)

// DeleteSnapshot are the statements that delete all that is stored of an entity, that it
// is registered, and refreshes that wait for quiet. Each takes source, facet and key. The state comes first, as in a write:
// two in the other order wait in a circle. The payload goes only if no state is there: one
// that was stored after the first statement keeps its own.
var DeleteSnapshot = [...]string{DeleteState, DeleteOrphan, DeleteStatus, DeleteEntity, DeleteQuietTriggers}

// ScanState fills the state by scan, which is a row's Scan; more are the
// destinations of columns behind StateColumns.
func (s *State) ScanState(scan func(...any) error, more ...any) error {
	var hash []byte
	var fetched, checked, updated int64
	err := scan(append([]any{
		&s.Version, &hash, &s.ExtractVersion, &s.Encoding, &s.Size,
		&fetched, &checked, &updated, &s.Absent, &s.ETag, &s.LastModified, &s.Visibility, &s.Manual,
	}, more...)...)
	copy(s.Hash[:], hash)
	s.FetchedAt, s.CheckedAt, s.UpdatedAt = fromMicros(fetched), fromMicros(checked), fromMicros(updated)
	return err
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
