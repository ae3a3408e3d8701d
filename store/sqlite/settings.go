package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/freshet/freshet/store"
)

// Setting returns what was changed of a source; Revision is 0 if nothing ever
// was.
func (s *Store) Setting(ctx context.Context, source string) (store.Setting, error) {
	setting := store.Setting{Source: source}
	err := setting.ScanSetting(s.db.QueryRowContext(ctx, store.SelectSetting, source).Scan)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Setting{}, fmt.Errorf("read the settings of %s: %w", source, err)
	}
	return setting, nil
}

// ChangeSetting writes a setting and the entry that says who changed it, both or
// neither. Its revision must be the one above the stored one, or it is refused
// with store.ErrConflict.
func (s *Store) ChangeSetting(ctx context.Context, setting store.Setting, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrConflict, setting.WriteSetting(), setting.SettingArgs()...)
	if err != nil {
		return fmt.Errorf("write the settings of %s: %w", setting.Source, err)
	}
	return nil
}

// execAudited runs a statement that writes one row, and writes the entry that says who
// had it run, both or neither; refused is the error if it writes none.
func (s *Store) execAudited(ctx context.Context, entry store.AuditEntry, refused error, statement string, args ...any) error {
	return s.inTx(ctx, func(tx *sql.Tx) error {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, refused)
		}
		_, err = tx.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	})
}

// WriteAudit writes an audit entry by itself, for an act on many rows that has no transaction of
// its own.
func (s *Store) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if _, err := s.db.ExecContext(ctx, store.InsertAudit, entry.AuditArgs()...); err != nil {
		return fmt.Errorf("write %s by %s into the audit: %w", entry.Action, entry.Actor, err)
	}
	return nil
}

// Audit returns the newest entries, the newest first, limit of them at most.
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

// Used returns the newest count of a policy's calls; zero if there is none.
func (s *Store) Used(ctx context.Context, source, policy string) (store.Usage, error) {
	var u store.Usage
	err := u.ScanUsage(s.db.QueryRowContext(ctx, store.SelectUsage, source, policy).Scan)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.Usage{}, fmt.Errorf("read the usage of %s, %s: %w", source, policy, err)
	}
	return u, nil
}

// SetUsed writes a count. One of an earlier day, or a lower one of the same day,
// changes nothing.
func (s *Store) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	if _, err := s.db.ExecContext(ctx, store.UpsertUsage, source, policy, u.DayEnd.UnixMicro(), u.Calls, u.At.UnixMicro()); err != nil {
		return fmt.Errorf("write the usage of %s, %s: %w", source, policy, err)
	}
	return nil
}
