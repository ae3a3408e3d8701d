package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/store"
)

// Keys returns all API keys, or those that are not revoked, the oldest first.
func (s *Store) Keys(ctx context.Context, live bool) ([]store.APIKey, error) {
	rows, err := s.pool.Query(ctx, store.KeysQuery(live))
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

// AddKey writes a key and the entry that says who made it, both or neither.
func (s *Store) AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrKeyNotFound, store.InsertKey, key.KeyArgs()...)
	if err != nil {
		return fmt.Errorf("write the API key %s: %w", key.ID, err)
	}
	return nil
}

// RevokeKey revokes a key and writes the entry that says who did, both or
// neither; store.ErrKeyNotFound if there is none, or it is revoked.
func (s *Store) RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error {
	err := s.execAudited(ctx, entry, store.ErrKeyNotFound, store.RevokeKey, id, at.UnixMicro(), by)
	if err != nil {
		return fmt.Errorf("revoke the API key %s: %w", id, err)
	}
	return nil
}
