package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"maps"
	"strings"
	"time"

	"github.com/freshet/freshet/store"
)

// An API key is fsk_<id>_<secret>. Secret scanners find it by the prefix. The id is not secret
// and identifies the key in lists and audit entries.
const (
	keyPrefix    = "fsk_"
	keyIDSize    = 12
	keySecretLen = 43 // length of the secret in characters: 32 bytes in base64url
)

// makeKey returns the id of a new key, the hash of its secret, and the complete key, which is
// shown only once.
func makeKey() (id string, hash [32]byte, fullKey string) {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // rand.Read never fails
	text := base64.RawURLEncoding.EncodeToString(secret[:])
	id = strings.ToLower(rand.Text()[:keyIDSize])
	return id, sha256.Sum256([]byte(text)), keyPrefix + id + "_" + text
}

// splitKey returns the id and the secret of an API key. ok reports whether the format is valid.
func splitKey(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok || len(rest) != keyIDSize+1+keySecretLen || rest[keyIDSize] != '_' {
		return "", "", false
	}
	return rest[:keyIDSize], rest[keyIDSize+1:], true
}

// clientOfKey returns the client of an API key. It takes the same time whether or not the id is
// known, so that an attacker can't find valid ids.
func (g *Guard) clientOfKey(text string) (Client, error) {
	id, secret, ok := splitKey(text)
	keys := g.keys.Load()
	key, known := keys.byID[id]
	sum := sha256.Sum256([]byte(secret))
	matches := subtle.ConstantTimeCompare(sum[:], key.Hash[:]) == 1
	if !ok || !known || !matches {
		return Client{}, invalidToken()
	}
	if !key.ExpiresAt.IsZero() && !g.now().Before(key.ExpiresAt) {
		return Client{}, expiredToken()
	}
	if g.now().Sub(keys.readAt) > g.config.maxAgeOf(key.client) {
		return Client{}, apiKeysTooOld()
	}
	return key.client, nil
}

// cachedKeys are the API keys that were not revoked at the last read.
type cachedKeys struct {
	byID   map[string]cachedKey
	readAt time.Time // time at which the read of the keys began
}

// maxAgeOf returns the maximum age of the cached API keys at which the key of this client is
// still accepted.
func (c Config) maxAgeOf(client Client) time.Duration {
	if client.May(Admin) {
		return c.MaxAge.AdminKeys
	}
	return c.MaxAge.APIKeys
}

// cachedKey is an API key with its Client, which is created once per read of the keys.
type cachedKey struct {
	store.APIKey
	client Client
}

func newCachedKey(k store.APIKey) cachedKey {
	c := Client{Name: "key:" + k.ID + " " + cleanName(k.Name), Expires: k.ExpiresAt}
	for _, s := range k.Scopes {
		c.Scopes = append(c.Scopes, Scope(s))
	}
	return cachedKey{k, c}
}

// countUsableKeys returns the number of cached API keys that are not expired.
func (g *Guard) countUsableKeys() (n int) {
	for _, k := range g.keys.Load().byID {
		if k.ExpiresAt.IsZero() || g.now().Before(k.ExpiresAt) {
			n++
		}
	}
	return n
}

// removeKey revokes a key in this process at once. It holds readMu, so that a read of the keys that
// began earlier can't restore the key.
func (g *Guard) removeKey(id string) {
	g.readMu.Lock()
	defer g.readMu.Unlock()
	keys := *g.keys.Load()
	keys.byID = maps.Clone(keys.byID)
	delete(keys.byID, id)
	g.setKeys(keys)
}
