package store

import (
	"errors"
	"strings"
	"time"
)

// APIKey is what is kept of a key: never its secret.
type APIKey struct {
	ID string
	// Hash is the SHA-256 of the secret. The secret is random, so that a hash that
	// is slow on purpose would protect nothing more. Zero: what is stored is no
	// hash, and the key holds for nobody.
	Hash      [32]byte
	Name      string
	Scopes    []string
	CreatedAt time.Time
	CreatedBy string
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: it is not
	RevokedBy string
}

// ErrKeyNotFound is returned for a key that there is none of, or none that holds.
var ErrKeyNotFound = errors.New("there is no such key")

// The queries about keys, the same in every database.
const (
	// selectKeys and selectLiveKeys return what ScanKey takes, the oldest first:
	// of all keys, and of those that are not revoked.
	selectKeys       = `SELECT ` + keyColumns + ` FROM api_keys` + keyOrder
	selectActiveKeys = `SELECT ` + keyColumns + ` FROM api_keys WHERE revoked_at = 0` + keyOrder

	// InsertKey takes KeyArgs.
	InsertKey = `INSERT INTO api_keys (id, hash, name, scopes, created_at, created_by, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`

	// RevokeKey takes id, microseconds and by whom, and writes a row or none.
	RevokeKey = `UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at = 0`

	keyColumns = `id, hash, name, scopes, created_at, created_by, expires_at, revoked_at, revoked_by`
	keyOrder   = ` ORDER BY created_at, id`
)

// KeysQuery returns the statement that lists all keys, or those not revoked.
func KeysQuery(live bool) string {
	if live {
		return selectActiveKeys
	}
	return selectKeys
}

// KeyArgs are what InsertKey takes.
func (k APIKey) KeyArgs() []any {
	return []any{k.ID, k.Hash[:], k.Name, strings.Join(k.Scopes, " "), k.CreatedAt.UnixMicro(), k.CreatedBy, toMicros(k.ExpiresAt)}
}

// ScanKey fills the key by scan, which is a row's Scan. A hash that is none does not
// fail it: one bad row must not keep a revocation of the others from being heard.
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
