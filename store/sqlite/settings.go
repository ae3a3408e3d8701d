package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/store"
)

// Setting returns the override of a source. Revision is 0 if the source never had one.
func (s *Store) Setting(ctx context.Context, source string) (store.Setting, error) {
	setting := store.Setting{Source: source}
	err := setting.ScanSetting(s.db.QueryRowContext(ctx, store.SelectSetting, source).Scan)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Setting{}, fmt.Errorf("read the settings of %s: %w", source, err)
	}
	return setting, nil
}

// ChangeSetting writes a setting and its audit entry in one transaction. It returns
// store.ErrConflict unless setting.Revision is the stored revision plus 1.
func (s *Store) ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrConflict, setting.WriteSetting(), setting.SettingArgs()...)
	if err != nil {
		return fmt.Errorf("write the settings of %s: %w", setting.Source, err)
	}
	return nil
}

// execAudited runs a statement that writes one row, and writes the audit entry, in one transaction. If
// the statement writes no row, it returns the error `notWritten`, and no audit entry is written.
func (s *Store) execAudited(ctx context.Context, entry store.AuditEntry, notWritten error, statement string, args ...any) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, notWritten)
		}
		_, err = tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	})
}

// WriteAudit writes an audit entry on its own. It is for an operation on many rows that runs in
// several transactions.
func (s *Store) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if _, err := s.db.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...); err != nil {
		return fmt.Errorf("write %s by %s into the audit: %w", entry.Action, entry.Actor, err)
	}
	return nil
}

// Audit returns at most `limit` audit entries, newest first.
func (s *Store) Audit(ctx context.Context, limit int) (all []store.AuditEntry, err error) {
	rows, err := s.db.QueryContext(ctx, store.SelectAudit, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e store.AuditEntry
		if err := e.ScanAudit(rows.Scan); err != nil {
			return nil, fmt.Errorf("read the audit: %w", err)
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// Used returns the latest stored count of a quota policy's calls; zero if none is stored.
func (s *Store) Used(ctx context.Context, source, policy string) (store.Usage, error) {
	var u store.Usage
	err := u.ScanUsage(s.db.QueryRowContext(ctx, store.SelectUsage, source, policy).Scan)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Usage{}, fmt.Errorf("read the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return u, nil
}

// SetUsed writes a count of a quota policy's calls. It ignores a count of an earlier day, and a
// lower count of the same day.
func (s *Store) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	if _, err := s.db.ExecContext(ctx, store.UpsertUsage, source, policy, u.DayEnd.UnixMicro(), u.Calls, u.At.UnixMicro()); err != nil {
		return fmt.Errorf("write the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return nil
}
