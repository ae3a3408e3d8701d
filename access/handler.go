package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	maxKeyNameSize = 64 // maximum length of the name of a key, in bytes
	// minKeyTTL and maxKeyTTL limit the lifetime of a key that expires.
	minKeyTTL = time.Minute
	maxKeyTTL = 10 * 365 * 24 * time.Hour

	actionCreate = "key-create"
	actionRevoke = "key-revoke"
)

// Key is an API key without its secret, as in the admin API and in the audit.
type Key struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Scopes    []Scope    `json:"scopes"`
	CreatedAt time.Time  `json:"createdAt"`
	CreatedBy string     `json:"createdBy"`
	ExpiresAt *time.Time `json:"expiresAt"` // when the key expires; nil: never
	RevokedAt *time.Time `json:"revokedAt"` // when the key was revoked; nil: it is not revoked
	RevokedBy *string    `json:"revokedBy"`
}

func newKeyView(k store.APIKey) Key {
	key := Key{ID: k.ID, Name: k.Name, Scopes: []Scope{}, CreatedAt: k.CreatedAt, CreatedBy: k.CreatedBy}
	for _, s := range k.Scopes {
		key.Scopes = append(key.Scopes, Scope(s))
	}
	if !k.ExpiresAt.IsZero() {
		key.ExpiresAt = &k.ExpiresAt
	}
	if !k.RevokedAt.IsZero() {
		key.RevokedAt, key.RevokedBy = &k.RevokedAt, &k.RevokedBy
	}
	return key
}

// CreatedKey is the response to the creation of a key. No other response contains the secret.
type CreatedKey struct {
	Key    Key    `json:"key"`
	Secret string `json:"secret"`
	// Required reports whether the service requires authentication now.
	Required bool `json:"required"`
}

// keysAPI is the admin API of API keys.
type keysAPI struct {
	guard *Guard
	actor func(*http.Request) string
}

// Handler returns the admin API of API keys, for the path /admin/v1/keys and all paths below it. It
// requires the scope admin and rejects requests from pages of other sites. The function `actor`
// returns the name of a request's client for the audit.
func (g *Guard) Handler(actor func(*http.Request) string) http.Handler {
	a := &keysAPI{g, actor}
	return g.Admin(admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/keys":      {http.MethodGet: a.list, http.MethodPost: a.create},
			"/admin/v1/keys/{id}": {http.MethodDelete: a.revoke},
		},
		Explain:     func(error) *problem.HTTPError { return nil },
		Unavailable: "API keys can't be read or written now. The query service's log has the reason. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "A page of another site may not create or revoke keys.",
		Log:         g.log,
	}.Handler())
}

func (a *keysAPI) list(r *http.Request) (admin.Answer, error) {
	all, err := a.guard.store.Keys(r.Context(), false)
	keys := make([]Key, len(all))
	for i, k := range all {
		keys[i] = newKeyView(k)
	}
	return admin.Answer{Body: map[string]any{"keys": keys}}, err
}

// NewKey is the request body that creates a key.
type NewKey struct {
	Name   string  `json:"name"`
	Scopes []Scope `json:"scopes"`
	// ExpiresIn is the lifetime of the key, as in 90d or 12h; empty: the key does not expire.
	ExpiresIn string `json:"expiresIn,omitempty"`
}

func (a *keysAPI) create(r *http.Request) (admin.Answer, error) {
	newKey, ttl, err := readNewKey(r.Body)
	if err != nil {
		return admin.Answer{}, err
	}
	creator, known := ClientFromContext(r.Context())
	if known {
		for _, s := range newKey.Scopes {
			if !creator.May(s) {
				return admin.Answer{}, Forbid(s)
			}
		}
	}
	now := a.guard.now().UTC().Truncate(time.Microsecond)
	key := store.APIKey{Name: newKey.Name, CreatedAt: now, CreatedBy: a.actor(r)}
	for _, s := range newKey.Scopes {
		key.Scopes = append(key.Scopes, string(s))
	}
	if ttl > 0 {
		key.ExpiresAt = now.Add(ttl)
	}
	// A key must not outlive the credential that created it. Otherwise a credential could evade
	// its own expiry by creating a key.
	if end := creator.Expires; !end.IsZero() && (key.ExpiresAt.IsZero() || key.ExpiresAt.After(end)) {
		key.ExpiresAt = end.UTC().Truncate(time.Microsecond)
	}
	var secret string
	key.ID, key.Hash, secret = makeKey()
	if err := a.guard.store.AddKey(r.Context(), key, auditEntry(actionCreate, key.CreatedBy, now, nil, &key)); err != nil {
		return admin.Answer{}, err
	}
	// Read all keys from the database, instead of adding the new key to the cache: another process
	// may have revoked the new key already.
	if err := a.guard.readLiveKeys(r.Context()); err != nil {
		a.guard.log.Warn("api key created, but the keys could not be reread; the new key is valid after the next read", "key", key.ID, "err", err)
	}
	return admin.Answer{Status: http.StatusCreated, Body: CreatedKey{newKeyView(key), secret, a.guard.AuthRequired()}}, nil
}

func (a *keysAPI) revoke(r *http.Request) (admin.Answer, error) {
	id := r.PathValue("id")
	key, err := a.find(r.Context(), id)
	if err != nil {
		return admin.Answer{}, err
	}
	if key.RevokedAt.IsZero() {
		before := key
		key.RevokedAt, key.RevokedBy = a.guard.now().UTC().Truncate(time.Microsecond), a.actor(r)
		err := a.guard.store.RevokeKey(r.Context(), id, key.RevokedBy, key.RevokedAt, auditEntry(actionRevoke, key.RevokedBy, key.RevokedAt, &before, &key))
		if errors.Is(err, store.ErrKeyNotFound) { // another request has revoked the key in the meantime
			key, err = a.find(r.Context(), id)
		}
		if err != nil {
			return admin.Answer{}, err
		}
	}
	a.guard.removeKey(id)
	return admin.Answer{Body: newKeyView(key)}, nil
}

func (a *keysAPI) find(ctx context.Context, id string) (store.APIKey, error) {
	all, err := a.guard.store.Keys(ctx, false)
	if err != nil {
		return store.APIKey{}, err
	}
	i := slices.IndexFunc(all, func(k store.APIKey) bool { return k.ID == id })
	if i < 0 {
		return store.APIKey{}, problem.New(http.StatusNotFound, problem.NoSuchKey, fmt.Sprintf("There is no key %.40q. GET /admin/v1/keys lists the keys.", id))
	}
	return all[i], nil
}

// auditEntry returns the audit entry of a change to a key. `before` is the key before the change
// and `after` the key after the change; nil: there was no key at that time.
func auditEntry(action, actor string, at time.Time, before, after *store.APIKey) store.AuditEntry {
	text := func(k *store.APIKey) json.RawMessage {
		if k == nil {
			return json.RawMessage("{}")
		}
		text, err := json.Marshal(newKeyView(*k))
		if err != nil {
			panic(err) // encoding a type of this package can't fail
		}
		return text
	}
	return store.AuditEntry{At: at, Actor: actor, Action: action, Before: text(before), After: text(after)}
}

func readNewKey(body io.Reader) (o NewKey, ttl time.Duration, err error) {
	if err := admin.DecodeBody(body, &o, `; the body must be {"name":"a-dashboard","scopes":["read"],"expiresIn":"90d"}, where expiresIn is optional`); err != nil {
		return o, 0, err
	}
	if err := o.check(&ttl); err != nil {
		return o, 0, problem.Body(err)
	}
	return o, ttl, nil
}

func (o *NewKey) check(ttl *time.Duration) (err error) {
	if o.Name == "" || len(o.Name) > maxKeyNameSize || !utf8.ValidString(o.Name) || strings.ContainsFunc(o.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("the name must be 1 to %d printable bytes; it identifies the key in lists and audit entries", maxKeyNameSize)
	}
	if len(o.Scopes) == 0 {
		return errors.New("scopes are required: read, refresh, inspect, delegate (calls on behalf of its own clients), see:NAME (entities of that visibility), plan:NAME (plan of credits), or admin (includes all others)")
	}
	for i, s := range o.Scopes {
		if !s.known() {
			return fmt.Errorf("the scope %.50q must be read, refresh, inspect, delegate or admin, or see:NAME or plan:NAME, where NAME has 1 to 40 letters, digits, - and _", string(s))
		}
		if slices.Contains(o.Scopes[:i], s) {
			return fmt.Errorf("the scope %s is listed twice", s)
		}
	}
	if err := checkDelegate(o.Scopes); err != nil {
		return err
	}
	if o.ExpiresIn != "" {
		*ttl, err = parseTTL(o.ExpiresIn)
	}
	return err
}

// parseTTL parses a lifetime: days as in 90d, or the format of time.ParseDuration.
func parseTTL(text string) (time.Duration, error) {
	var ttl time.Duration
	number, inDays := strings.CutSuffix(text, "d")
	if days, err := strconv.Atoi(number); inDays && err == nil && days >= 0 && days <= int(maxKeyTTL/(24*time.Hour)) {
		ttl = time.Duration(days) * 24 * time.Hour
	} else if ttl, err = time.ParseDuration(text); err != nil {
		ttl = 0
	}
	if ttl < minKeyTTL || ttl > maxKeyTTL {
		return 0, fmt.Errorf("expiresIn is %.20q; it must be from a minute to ten years, as in 90d or 12h", text)
	}
	return ttl, nil
}
