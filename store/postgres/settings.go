package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
)

// Setting returns the override of a source, in one round trip. Revision is 0 if the source never
// had an override.
func (s *Store) Setting(ctx context.Context, source string) (store.Setting, error) {
	setting := store.Setting{Source: source}
	err := setting.ScanSetting(s.pool.QueryRow(ctx, store.SelectSetting, source).Scan)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
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
	return classifyError(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, statement, args...)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return notWritten
		}
		_, err = tx.Exec(ctx, store.InsertAudit, entry.AuditArgs()...)
		return err
	}))
}

// WriteAudit writes an audit entry on its own. It is for an operation on many rows that runs in
// several transactions.
func (s *Store) WriteAudit(ctx context.Context, entry store.AuditEntry) error {
	if _, err := s.pool.Exec(ctx, store.InsertAudit, entry.AuditArgs()...); err != nil {
		return fmt.Errorf("write %s by %s into the audit: %w", entry.Action, entry.Actor, classifyError(err))
	}
	return nil
}

// Audit returns at most `limit` audit entries, newest first.
func (s *Store) Audit(ctx context.Context, limit int) ([]store.AuditEntry, error) {
	rows, err := s.pool.Query(ctx, store.SelectAudit, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e store.AuditEntry, err error) {
		return e, e.ScanAudit(row.Scan)
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit: %w", err)
	}
	return all, nil
}

// Used returns the latest stored count of a quota policy's calls, in one round trip; zero if none
// is stored.
func (s *Store) Used(ctx context.Context, source, policy string) (store.Usage, error) {
	var u store.Usage
	err := u.ScanUsage(s.pool.QueryRow(ctx, store.SelectUsage, source, policy).Scan)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return store.Usage{}, fmt.Errorf("read the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return u, nil
}

// SetUsed writes a count of a quota policy's calls. It ignores a count of an earlier day, and a
// lower count of the same day. It needs one round trip.
func (s *Store) SetUsed(ctx context.Context, source, policy string, u store.Usage) error {
	if _, err := s.pool.Exec(ctx, store.UpsertUsage, source, policy, u.DayEnd.UnixMicro(), u.Calls, u.At.UnixMicro()); err != nil {
		return fmt.Errorf("write the counted calls of source %s, policy %s: %w", source, policy, err)
	}
	return nil
}
