package store

import (
	"errors"
	"strings"
	"time"
)

// APIKey is a stored API key, without its secret.
type APIKey struct {
	ID string
	// Hash is the SHA-256 of the secret. A slow hash would add no protection, because the secret is
	// random. If it is zero, the stored value is not a hash, and the key is not accepted.
	Hash      [32]byte
	Name      string
	Scopes    []string
	CreatedAt time.Time
	CreatedBy string
	ExpiresAt time.Time // when the key expires; zero means never
	RevokedAt time.Time // when the key was revoked; zero means that it is not revoked
	RevokedBy string
}

// ErrKeyNotFound is returned for a key that does not exist or is revoked already.
var ErrKeyNotFound = errors.New("the API key does not exist or is revoked")

// Statements for API keys, shared by both databases.
const (
	// selectKeys returns all keys, and selectActiveKeys the keys that are not revoked, oldest
	// first, with the columns of ScanKey.
	selectKeys       = `SELECT ` + keyColumns + ` FROM api_keys` + keyOrder
	selectActiveKeys = `SELECT ` + keyColumns + ` FROM api_keys WHERE revoked_at = 0` + keyOrder

	// InsertKey inserts an API key. Arguments: APIKey.KeyArgs.
	InsertKey = `INSERT INTO api_keys (id, hash, name, scopes, created_at, created_by, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	// RevokeKey revokes a key. It writes one row, or none if the key is revoked already. Arguments:
	// id, time in microseconds, name of the actor.
	RevokeKey = `UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0`

	keyColumns = `id, hash, name, scopes, created_at, created_by, expires_at, revoked_at, revoked_by`
	keyOrder   = ` ORDER BY created_at, id`
)

// KeysQuery returns the statement that lists all keys, or without revoked keys if active is true.
func KeysQuery(active bool) string {
	if active {
		return selectActiveKeys
	}
	return selectKeys
}

// KeyArgs returns the arguments of InsertKey.
func (k APIKey) KeyArgs() []any {
	return []any{k.ID, k.Hash[:], k.Name, strings.Join(k.Scopes, " "), k.CreatedAt.UnixMicro(), k.CreatedBy, toMicros(k.ExpiresAt)}
}

// ScanKey reads the key from a row. A hash of the wrong length is no error: one invalid row must not
// prevent the other keys, and their revocations, from being read.
func (k *APIKey) ScanKey(scan func(...any) error) error {
	var hash []byte
	var scopes string
	var created, expires, revoked int64
	err := scan(&k.ID, &hash, &k.Name, &scopes, &created, &k.CreatedBy, &expires, &revoked, &k.RevokedBy)
	k.Hash = [32]byte{}
	if len(hash) == len(k.Hash) {
		copy(k.Hash[:], hash)
	}
	k.Scopes = strings.Fields(scopes)
	k.CreatedAt, k.ExpiresAt, k.RevokedAt = fromMicros(created), fromMicros(expires), fromMicros(revoked)
	return err
}
