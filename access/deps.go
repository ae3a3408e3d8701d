package access

import (
	"context"
	"time"

	"github.com/freshet/freshet/store"
)

// KeyStore stores API keys in the database.
type KeyStore interface {
	// Keys returns all API keys or, if `live` is true, only the keys that are not revoked. Every
	// query service calls it every 5 s (keyReadInterval).
	Keys(ctx context.Context, live bool) ([]store.APIKey, error)
	// AddKey inserts a key and its audit entry in one transaction.
	AddKey(ctx context.Context, key store.APIKey, entry store.AuditEntry) error
	// RevokeKey revokes a key and inserts the audit entry in one transaction. The error is
	// store.ErrKeyNotFound if the key does not exist or is already revoked.
	RevokeKey(ctx context.Context, id, by string, at time.Time, entry store.AuditEntry) error
}
