package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// Keys returns all API keys, or those that are not revoked, the oldest first.
func (s *Store) Keys(ctx context.Context, live bool) (all []store.APIKey, err error) {
	rows, err := s.db.QueryContext(ctx, store.KeysQuery(live))
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
