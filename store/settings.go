package store

import (
	"encoding/json"
	"errors"
	"time"
)

// Setting is the runtime override of a source's configuration.
type Setting struct {
	Source string
	// Value is the override as JSON; {} if it was removed; nil if the source never had one.
	Value json.RawMessage
	// Revision increases by one with each change; 0 means that the source never had an override.
	Revision  int64
	ChangedAt time.Time
	ChangedBy string
}

// AuditEntry is one entry of the audit log. Source is empty for a change that belongs to no source,
// such as a change of an API key.
type AuditEntry struct {
	ID            int64 // assigned by the database; later entries have higher IDs
	At            time.Time
	Actor, Action string
	Source        string
	Before, After json.RawMessage
	Note          string
}

// Usage is the number of calls that a source has made under a quota policy of a calendar day.
type Usage struct {
	DayEnd time.Time // the midnight that ends the day
	Calls  int64
	At     time.Time // time at which the calls were counted
}

// ErrConflict is returned for a write that is based on an outdated version of the row: a setting
// with another revision, or a DLQ job with another lease holder. Nothing was written; read the row
// again.
var ErrConflict = errors.New("the row was changed concurrently")

// InsertAudit inserts an audit entry. Arguments: AuditArgs.
const InsertAudit = `INSERT INTO audit (at, actor, action, source, before, after, note) VALUES ($1, $2, $3, $4, $5, $6, $7)`

// AuditArgs returns the arguments of InsertAudit.
func (e AuditEntry) AuditArgs() []any {
	return []any{e.At.UnixMicro(), e.Actor, e.Action, e.Source, string(e.Before), string(e.After), e.Note}
}
