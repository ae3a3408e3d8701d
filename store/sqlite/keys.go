package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// Keys returns the API keys, oldest first. If active is true, it leaves out revoked keys.
func (s *Store) Keys(ctx context.Context, active bool) (all []store.APIKey, err error) {
	rows, err := s.db.QueryContext(ctx, store.KeysQuery(active))
	if err != nil {
		return nil, fmt.Errorf("read the API keys: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var k store.APIKey
		if err := k.ScanKey(rows.Scan); err != nil {
			return nil, fmt.Errorf("read the API keys: %w", err)
		}
		all = append(all, k)
	}
	return all, rows.Err()
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
