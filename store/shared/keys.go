package shared

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/store"
)

// keys keeps API keys.
type keys struct{ db DB }

// Keys returns the API keys, oldest first. If active is true, it leaves out revoked keys.
func (s keys) Keys(ctx context.Context, active bool) ([]store.APIKey, error) {
	all, err := Collect(ctx, s.db, scanKey, keysQuery(active))
	if err != nil {
		return nil, fmt.Errorf("read the API keys: %w", err)
	}
	return all, nil
}

// AddKey writes a key and its audit entry in one transaction.
func (s keys) AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error {
	err := ExecAudited(ctx, s.db, entry, store.ErrKeyNotFound, insertKey, keyArgs(key)...)
	if err != nil {
		return fmt.Errorf("write the API key %s: %w", key.ID, err)
	}
	return nil
}

// RevokeKey revokes a key and writes the audit entry in one transaction. It returns
// store.ErrKeyNotFound if the key does not exist or is revoked already.
func (s keys) RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error {
	err := ExecAudited(ctx, s.db, entry, store.ErrKeyNotFound, revokeKey, id, at.UnixMicro(), by)
	if err != nil {
		return fmt.Errorf("revoke the API key %s: %w", id, err)
	}
	return nil
}

// Statements for API keys, shared by both databases.
const (
	// selectKeys returns all keys, and selectActiveKeys the keys that are not revoked, oldest
	// first, with the columns of scanKey.
	selectKeys       = `SELECT ` + keyColumns + ` FROM api_keys` + keyOrder
	selectActiveKeys = `SELECT ` + keyColumns + ` FROM api_keys WHERE revoked_at = 0` + keyOrder

	// insertKey inserts an API key. Arguments: keyArgs.
	insertKey = `INSERT INTO api_keys (id, hash, name, scopes, created_at, created_by, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	// revokeKey revokes a key. It writes one row, or none if the key is revoked already. Arguments:
	// id, time in microseconds, name of the actor.
	revokeKey = `UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0`

	keyColumns = `id, hash, name, scopes, created_at, created_by, expires_at, revoked_at, revoked_by`
	keyOrder   = ` ORDER BY created_at, id`
)

// keysQuery returns the statement that lists all keys, or without revoked keys if active is true.
func keysQuery(active bool) string {
	if active {
		return selectActiveKeys
	}
	return selectKeys
}

// keyArgs returns the arguments of insertKey.
func keyArgs(k store.APIKey) []any {
	return []any{k.ID, k.Hash[:], k.Name, strings.Join(k.Scopes, " "), k.CreatedAt.UnixMicro(), k.CreatedBy, store.ToMicros(k.ExpiresAt)}
}

// scanKey reads the key from a row. A hash of the wrong length is no error: one invalid row must not
// prevent the other keys, and their revocations, from being read.
func scanKey(k *store.APIKey, scan func(...any) error) error {
	var hash []byte
	var scopes string
	var created, expires, revoked int64
	err := scan(&k.ID, &hash, &k.Name, &scopes, &created, &k.CreatedBy, &expires, &revoked, &k.RevokedBy)
	k.Hash = [32]byte{}
	if len(hash) == len(k.Hash) {
		copy(k.Hash[:], hash)
	}
	k.Scopes = strings.Fields(scopes)
	k.CreatedAt, k.ExpiresAt, k.RevokedAt = store.FromMicros(created), store.FromMicros(expires), store.FromMicros(revoked)
	return err
}
