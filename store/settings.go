package store

import (
	"encoding/json"
	"errors"
	"time"
)

// Setting is what was changed of a source while it runs.
type Setting struct {
	Source string
	// Value is the whole change as JSON, {} for one that was taken back; nil if
	// nothing was ever changed.
	Value json.RawMessage
	// Revision rises by one with each change; 0: nothing was ever changed.
	Revision  int64
	ChangedAt time.Time
	ChangedBy string
}

// AuditEntry says who changed what. Source is empty for what is of no source, as
// an API key.
type AuditEntry struct {
	ID            int64 // rises; given by the database
	At            time.Time
	Actor, Action string
	Source        string
	Before, After json.RawMessage
	Note          string
}

// Usage is how many calls of a calendar day were given out.
type Usage struct {
	DayEnd time.Time // the midnight at which the day ends
	Calls  int64
	At     time.Time // when that was so
}

// ErrConflict is returned for a change of a setting of which another revision is
// stored than the one before it. Nothing was written: read it again.
var ErrConflict = errors.New("the setting was changed by somebody else meanwhile")

// The queries about settings, the same in every database.
const (
	// SelectSetting takes the source and returns what ScanSetting takes.
	SelectSetting = `SELECT value, revision, changed_at, changed_by FROM settings WHERE source = $1`

	// InsertSetting and UpdateSetting take SettingArgs, and write a row or none:
	// the first writes revision 1 only, the second the one above the stored one.
	InsertSetting = `INSERT INTO settings (source, value, revision, changed_at, changed_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source) DO NOTHING`
	UpdateSetting = `UPDATE settings SET value = $2, revision = $3, changed_at = $4, changed_by = $5
WHERE source = $1 AND revision + 1 = $3`

	// InsertAudit takes AuditArgs.
	InsertAudit = `INSERT INTO audit (at, actor, action, source, before, after, note) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	// SelectAudit takes the greatest number of rows, and returns what ScanAudit
	// takes.
	SelectAudit = `SELECT id, at, actor, action, source, before, after, note FROM audit ORDER BY id DESC LIMIT $1`

	// SelectUsage takes source and policy, and returns what ScanUsage takes.
	SelectUsage = `SELECT day_end, calls, counted_at FROM quota_usage WHERE source = $1 AND policy = $2`

	// UpsertUsage takes source, policy, the end of the day, calls and when they
	// were counted. Counts only ever rise within a day.
	UpsertUsage = `INSERT INTO quota_usage AS u (source, policy, day_end, calls, counted_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source, policy) DO UPDATE
SET day_end = excluded.day_end, calls = excluded.calls, counted_at = excluded.counted_at
WHERE (excluded.day_end, excluded.calls, excluded.counted_at) > (u.day_end, u.calls, u.counted_at)`
)

// WriteSetting returns the statement that writes the setting's revision.
func (s Setting) WriteSetting() string {
	if s.Revision == 1 {
		return InsertSetting
	}
	return UpdateSetting
}

// SettingArgs are what InsertSetting and UpdateSetting take.
func (s Setting) SettingArgs() []any {
	return []any{s.Source, string(s.Value), s.Revision, s.ChangedAt.UnixMicro(), s.ChangedBy}
}

// ScanSetting fills the setting by scan, which is a row's Scan.
func (s *Setting) ScanSetting(scan func(...any) error) error {
	var changed int64
	err := scan((*[]byte)(&s.Value), &s.Revision, &changed, &s.ChangedBy)
	s.ChangedAt = fromMicros(changed)
	return err
}

// AuditArgs are what InsertAudit takes.
func (e AuditEntry) AuditArgs() []any {
	return []any{e.At.UnixMicro(), e.Actor, e.Action, e.Source, string(e.Before), string(e.After), e.Note}
}

// ScanAudit fills the entry by scan, which is a row's Scan.
func (e *AuditEntry) ScanAudit(scan func(...any) error) error {
	var at int64
	err := scan(&e.ID, &at, &e.Actor, &e.Action, &e.Source, (*[]byte)(&e.Before), (*[]byte)(&e.After), &e.Note)
	e.At = fromMicros(at)
	return err
}

// ScanUsage fills the usage by scan, which is a row's Scan.
func (u *Usage) ScanUsage(scan func(...any) error) error {
	var end, at int64
	err := scan(&end, &u.Calls, &at)
	u.DayEnd, u.At = fromMicros(end), fromMicros(at)
	return err
}
