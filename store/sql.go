package store

import "time"

// Statements that delete rows of an entity, shared by both databases and by the packages of the other
// rows of the entity.
const (
	// DeleteState and DeleteStatus delete the state or the status of an entity. Arguments: source,
	// facet, key.
	DeleteState  = `DELETE FROM snapshot_state WHERE source = $1 AND facet = $2 AND key = $3`
	DeleteStatus = `DELETE FROM update_status WHERE source = $1 AND facet = $2 AND key = $3`

	deleteOrphanPayload    = `DELETE FROM snapshot_payload` + withoutState
	deleteOrphanItems      = `DELETE FROM items` + withoutState
	deleteOrphanWalkPages  = `DELETE FROM walk_pages` + withoutState
	deleteOrphanCollection = `DELETE FROM collections` + withoutState

	withoutState = ` WHERE source = $1 AND facet = $2 AND key = $3
AND NOT EXISTS (SELECT 1 FROM snapshot_state s WHERE s.source = $1 AND s.facet = $2 AND s.key = $3)`
)

// DeleteOrphans are the statements that delete the payload and the items of an entity whose row in
// snapshot_state was deleted. Arguments of each: source, facet, key.
var DeleteOrphans = [...]string{deleteOrphanPayload, deleteOrphanItems, deleteOrphanWalkPages, deleteOrphanCollection}

// FromMicros returns the time of a column with microseconds since 1970 UTC; 0 is the zero time.
func FromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// ToMicros returns the value of FromMicros for a time.
func ToMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
