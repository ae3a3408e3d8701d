package shared

import (
	"context"
	"fmt"

	"github.com/freshet/freshet/store"
)

// settings keeps settings, audit entries and counts of calls.
type settings struct{ db DB }

// Setting returns the override of a source. Revision is 0 if the source never had one.
func (s settings) Setting(ctx context.Context, source string) (store.Setting, error) {
	setting := store.Setting{Source: source}
	if _, err := ReadRow(ctx, s.db, func(scan func(...any) error) error { return scanSetting(&setting, scan) }, selectSetting, source); err != nil {
		return store.Setting{}, fmt.Errorf("read the settings of %s: %w", source, err)
	}
	return setting, nil
}

// ChangeSetting writes a setting and its audit entry in one transaction. It returns
// store.ErrConflict unless setting.Revision is the stored revision plus 1.
func (s settings) ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error {
	err := ExecAudited(ctx, s.db, entry, store.ErrConflict, writeSetting(setting), SettingArgs(setting)...)
	if err != nil {
		return fmt.Errorf("write the settings of %s: %w", setting.Source, err)
	}
	return nil
}

// WriteAudit writes an audit entry on its own. It is for an operation on many rows that runs in
// several transactions.
func (s settings) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if _, err := s.db.Exec(ctx, store.InsertAudit, entry.AuditArgs()...); err != nil {
		return fmt.Errorf("write %s by %s into the audit: %w", entry.Action, entry.Actor, err)
	}
	return nil
}

// Audit returns at most `limit` audit entries, newest first.
func (s settings) Audit(ctx context.Context, limit int) ([]store.AuditEntry, error) {
	all, err := Collect(ctx, s.db, scanAudit, selectAudit, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return all, nil
}

// Used returns the latest stored count of a quota policy's calls; zero if none is stored.
func (s settings) Used(ctx context.Context, source, policy string) (store.Usage, error) {
	var u store.Usage
	if _, err := ReadRow(ctx, s.db, func(scan func(...any) error) error { return scanUsage(&u, scan) }, selectUsage, source, policy); err != nil {
		return store.Usage{}, fmt.Errorf("read the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return u, nil
}

// SetUsed writes a count of a quota policy's calls. It ignores a count of an earlier day, and a
// lower count of the same day.
func (s settings) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	if _, err := s.db.Exec(ctx, upsertUsage, source, policy, u.DayEnd.UnixMicro(), u.Calls, u.At.UnixMicro()); err != nil {
		return fmt.Errorf("write the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return nil
}

// Statements for settings, audit log and quota usage.
const (
	// selectSetting returns the columns of scanSetting. Argument: source.
	selectSetting = `SELECT value, revision, changed_at, changed_by FROM settings WHERE source = $1`

	// InsertSetting inserts revision 1 of a setting. updateSetting replaces a stored setting if the new
	// revision is the stored revision plus 1. Each statement writes one row or none. Arguments:
	// SettingArgs.
	InsertSetting = `INSERT INTO settings (source, value, revision, changed_at, changed_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source) DO NOTHING`
	updateSetting = `UPDATE settings SET value = $2, revision = $3, changed_at = $4, changed_by = $5
WHERE source = $1 AND revision + 1 = $3`

	// selectAudit returns audit entries, the newest first, with the columns of scanAudit. Argument:
	// limit.
	selectAudit = `SELECT id, at, actor, action, source, before, after, note FROM audit ORDER BY id DESC LIMIT $1`

	// selectUsage returns the columns of scanUsage. Arguments: source, policy.
	selectUsage = `SELECT day_end, calls, counted_at FROM quota_usage WHERE source = $1 AND policy = $2`

	// upsertUsage writes a count, unless a count of a later day, or a higher count of the same day,
	// is stored. Arguments: source, policy, day end, calls, time of the count.
	upsertUsage = `INSERT INTO quota_usage AS u (source, policy, day_end, calls, counted_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (source, policy) DO UPDATE
SET day_end = excluded.day_end, calls = excluded.calls, counted_at = excluded.counted_at
WHERE (excluded.day_end, excluded.calls, excluded.counted_at) > (u.day_end, u.calls, u.counted_at)`
)

// writeSetting returns the statement that writes the setting: InsertSetting for revision 1,
// otherwise updateSetting.
func writeSetting(s store.Setting) string {
	if s.Revision == 1 {
		return InsertSetting
	}
	return updateSetting
}

// SettingArgs returns the arguments of InsertSetting and updateSetting.
func SettingArgs(s store.Setting) []any {
	return []any{s.Source, string(s.Value), s.Revision, s.ChangedAt.UnixMicro(), s.ChangedBy}
}

// scanSetting reads the setting from a row.
func scanSetting(s *store.Setting, scan func(...any) error) error {
	var changed int64
	err := scan((*[]byte)(&s.Value), &s.Revision, &changed, &s.ChangedBy)
	s.ChangedAt = store.FromMicros(changed)
	return err
}

// scanAudit reads the entry from a row.
func scanAudit(e *store.AuditEntry, scan func(...any) error) error {
	var at int64
	err := scan(&e.ID, &at, &e.Actor, &e.Action, &e.Source, (*[]byte)(&e.Before), (*[]byte)(&e.After), &e.Note)
	e.At = store.FromMicros(at)
	return err
}

// scanUsage reads the usage from a row.
func scanUsage(u *store.Usage, scan func(...any) error) error {
	var end, at int64
	err := scan(&end, &u.Calls, &at)
	u.DayEnd, u.At = store.FromMicros(end), store.FromMicros(at)
	return err
}
