package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
)

// Keys returns the API keys, oldest first. If active is true, it leaves out revoked keys.
func (s *Store) Keys(ctx context.Context, active bool) ([]store.APIKey, error) {
	rows, err := s.pool.Query(ctx, store.KeysQuery(active))
	if err != nil {
		return nil, fmt.Errorf("read the API keys: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (k store.APIKey, err error) {
		return k, k.ScanKey(row.Scan)
	})
	if err != nil {
		return nil, fmt.Errorf("read the API keys: %w", err)
	}
	return all, nil
}

// AddKey writes a key and its audit entry in one transaction.
func (s *Store) AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrKeyNotFound, store.InsertKey, key.KeyArgs()...)
	if err != nil {
		return fmt.Errorf("write the API key %s: %w", key.ID, err)
	}
	return nil
}

// RevokeKey revokes a key and writes the audit entry in one transaction. It returns
// store.ErrKeyNotFound if the key does not exist or is revoked already.
func (s *Store) RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrKeyNotFound, store.RevokeKey, id, at.UnixMicro(), by)
	if err != nil {
		return fmt.Errorf("revoke the API key %s: %w", id, err)
	}
	return nil
}
