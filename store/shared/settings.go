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
	if _, err := readRow(ctx, s.db, setting.ScanSetting, store.SelectSetting, source); err != nil {
		return store.Setting{}, fmt.Errorf("read the settings of %s: %w", source, err)
	}
	return setting, nil
}

// ChangeSetting writes a setting and its audit entry in one transaction. It returns
// store.ErrConflict unless setting.Revision is the stored revision plus 1.
func (s settings) ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error {
	err := s.db.ExecAudited(ctx, entry, store.ErrConflict, setting.WriteSetting(), setting.SettingArgs()...)
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
	all, err := collect(ctx, s.db, (*store.AuditEntry).ScanAudit, store.SelectAudit, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return all, nil
}

// Used returns the latest stored count of a quota policy's calls; zero if none is stored.
func (s settings) Used(ctx context.Context, source, policy string) (store.Usage, error) {
	var u store.Usage
	if _, err := readRow(ctx, s.db, u.ScanUsage, store.SelectUsage, source, policy); err != nil {
		return store.Usage{}, fmt.Errorf("read the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return u, nil
}

// SetUsed writes a count of a quota policy's calls. It ignores a count of an earlier day, and a
// lower count of the same day.
func (s settings) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	if _, err := s.db.Exec(ctx, store.UpsertUsage, source, policy, u.DayEnd.UnixMicro(), u.Calls, u.At.UnixMicro()); err != nil {
		return fmt.Errorf("write the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return nil
}
