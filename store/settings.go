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

// Statements for settings, audit log and quota usage, shared by both databases.
const (
	// SelectSetting returns the columns of ScanSetting. Argument: source.
	SelectSetting = `SELECT value, revision, changed_at, changed_by FROM settings WHERE source = $1`

	// InsertSetting inserts revision 1 of a setting. updateSetting replaces a stored setting if the new
	// revision is the stored revision plus 1. Each statement writes one row or none. Arguments:
	// SettingArgs.
	InsertSetting = `INSERT INTO settings (source, value, revision, changed_at, changed_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source) DO NOTHING`
	updateSetting = `UPDATE settings SET value = $2, revision = $3, changed_at = $4, changed_by = $5
WHERE source = $1 AND revision + 1 = $3`

	// InsertAudit inserts an audit entry. Arguments: AuditArgs.
	InsertAudit = `INSERT INTO audit (at, actor, action, source, before, after, note) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	// SelectAudit returns audit entries, the newest first, with the columns of ScanAudit. Argument:
	// limit.
	SelectAudit = `SELECT id, at, actor, action, source, before, after, note FROM audit ORDER BY id DESC LIMIT $1`

	// SelectUsage returns the columns of ScanUsage. Arguments: source, policy.
	SelectUsage = `SELECT day_end, calls, counted_at FROM quota_usage WHERE source = $1 AND policy = $2`

	// UpsertUsage writes a count, unless a count of a later day, or a higher count of the same day,
	// is stored. Arguments: source, policy, day end, calls, time of the count.
	UpsertUsage = `INSERT INTO quota_usage AS u (source, policy, day_end, calls, counted_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source, policy) DO UPDATE
SET day_end = excluded.day_end, calls = excluded.calls, counted_at = excluded.counted_at
WHERE (excluded.day_end, excluded.calls, excluded.counted_at) > (u.day_end, u.calls, u.counted_at)`
)

// WriteSetting returns the statement that writes the setting: InsertSetting for revision 1,
// otherwise updateSetting.
func (s Setting) WriteSetting() string {
	if s.Revision == 1 {
		return InsertSetting
	}
	return updateSetting
}

// SettingArgs returns the arguments of InsertSetting and updateSetting.
func (s Setting) SettingArgs() []any {
	return []any{s.Source, string(s.Value), s.Revision, s.ChangedAt.UnixMicro(), s.ChangedBy}
}

// ScanSetting reads the setting from a row.
func (s *Setting) ScanSetting(scan func(...any) error) error {
	var changed int64
	err := scan((*[]byte)(&s.Value), &s.Revision, &changed, &s.ChangedBy)
	s.ChangedAt = fromMicros(changed)
	return err
}

// AuditArgs returns the arguments of InsertAudit.
func (e AuditEntry) AuditArgs() []any {
	return []any{e.At.UnixMicro(), e.Actor, e.Action, e.Source, string(e.Before), string(e.After), e.Note}
}

// ScanAudit reads the entry from a row.
func (e *AuditEntry) ScanAudit(scan func(...any) error) error {
	var at int64
	err := scan(&e.ID, &at, &e.Actor, &e.Action, &e.Source, (*[]byte)(&e.Before), (*[]byte)(&e.After), &e.Note)
	e.At = fromMicros(at)
	return err
}

// ScanUsage reads the usage from a row.
func (u *Usage) ScanUsage(scan func(...any) error) error {
	var end, at int64
	err := scan(&end, &u.Calls, &at)
	u.DayEnd, u.At = fromMicros(end), fromMicros(at)
	return err
}
