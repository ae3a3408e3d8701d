package shared

import (
	"context"
	"fmt"
	"time"

	"github.com/freshet/freshet/store"
)

// keys keeps API keys.
type keys struct{ db DB }

// Keys returns the API keys, oldest first. If active is true, it leaves out revoked keys.
func (s keys) Keys(ctx context.Context, active bool) ([]store.APIKey, error) {
	all, err := collect(ctx, s.db, (*store.APIKey).ScanKey, store.KeysQuery(active))
	if err != nil {
		return nil, fmt.Errorf("read the API keys: %w", err)
	}
	return all, nil
}

// AddKey writes a key and its audit entry in one transaction.
func (s keys) AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error {
	err := s.db.ExecAudited(ctx, entry, store.ErrKeyNotFound, store.InsertKey, key.KeyArgs()...)
	if err != nil {
		return fmt.Errorf("write the API key %s: %w", key.ID, err)
	}
	return nil
}

// RevokeKey revokes a key and writes the audit entry in one transaction. It returns
// store.ErrKeyNotFound if the key does not exist or is revoked already.
func (s keys) RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error {
	err := s.db.ExecAudited(ctx, entry, store.ErrKeyNotFound, store.RevokeKey, id, at.UnixMicro(), by)
	if err != nil {
		return fmt.Errorf("revoke the API key %s: %w", id, err)
	}
	return nil
}
