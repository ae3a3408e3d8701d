package access

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// KeyStore is where API keys outlive every process.
type KeyStore interface {
	// Keys returns all API keys, or those that are not revoked. Every query service
	// asks for the latter every few seconds.
	Keys(ctx context.Context, live bool) ([]store.APIKey, error)
	// AddKey writes a key and its entry of the audit, both or neither.
	AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error
	// RevokeKey revokes a key and writes the entry, both or neither; store.ErrKeyNotFound
	// if there is none that is not revoked.
	RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error
}
