package store

import (
	"errors"
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
