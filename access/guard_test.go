package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

// createKey inserts a key into the store directly, without the admin API.
func (r *rig) createKey(name string, expires time.Time, scopes ...string) (id, fullKey string) {
	r.Helper()
	id, hash, fullKey := makeKey()
	k := store.APIKey{ID: id, Hash: hash, Name: name, Scopes: scopes, CreatedAt: now, CreatedBy: "a test", ExpiresAt: expires}
	if err := r.db.AddKey(context.Background(), k, auditEntry(actionCreate, "a test", now, nil, &k)); err != nil {
		r.Fatal(err)
	}
	return id, fullKey
}

func TestAuthenticate_AcceptsAKeyUntilItsEnd(t *testing.T) {
	r := newRig(t, nil)
	id, key := r.createKey("a dashboard", time.Time{}, "read", "refresh")
	short, brief := r.createKey("for a day", now.Add(24*time.Hour), "admin")
	r.rejects("before the next read", 401, problem.TokenInvalid, "Bearer "+key)
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.accepts("a key", "key:"+id+" a dashboard", "Bearer "+key, Read, Refresh)
	if c := r.accepts("one that expires", "key:"+short+" for a day", "Bearer "+brief, Admin); !c.Expires.Equal(now.Add(24*time.Hour)) || !c.May(Read) || !c.May(Refresh) {
		t.Errorf("got %+v, want an admin for a day", c)
	}
	r.at = now.Add(24 * time.Hour)
	r.rejects("expired", 401, problem.TokenExpired, "Bearer "+brief)
	r.accepts("the other", "key:"+id+" a dashboard", "Bearer "+key, Read, Refresh)
	if err := r.db.RevokeKey(t.Context(), id, "a test", now, auditEntry(actionRevoke, "a test", now, nil, nil)); err != nil {
		t.Fatal(err)
	}
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.rejects("revoked", 401, problem.TokenInvalid, "Bearer "+key)
}

func TestAuthenticate_RejectsInvalidKeys(t *testing.T) {
	r := newRig(t, nil)
	_, expired := r.createKey("expired", now.Add(-time.Hour), "admin")
	id, key := r.createKey("a dashboard", time.Time{}, "read")
	_, other := r.createKey("another", time.Time{}, "read")
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	secret := key[len(key)-keySecretLen:]
	for what, token := range map[string]string{
		"an unknown id":                   keyPrefix + "aaaaaaaaaaaa_" + secret,
		"truncated":                       key[:len(key)-1],
		"prolonged":                       key + "A",
		"the secret of another":           key[:len(key)-keySecretLen] + other[len(other)-keySecretLen:],
		"no secret":                       keyPrefix + id + "_",
		"no id":                           keyPrefix + "_" + secret,
		"the id in capitals":              keyPrefix + strings.ToUpper(id) + "_" + secret,
		"the secret alone":                secret,
		"the prefix alone":                keyPrefix,
		"another prefix":                  "FSK_" + key[len(keyPrefix):],
		"expired, with a forged secret":   expired[:len(expired)-keySecretLen] + secret,
		"an unknown id, and nothing else": keyPrefix + "aaaaaaaaaaaa_" + strings.Repeat("A", keySecretLen),
	} {
		r.rejects(what, 401, problem.TokenInvalid, "Bearer "+token)
	}
	r.rejects("no header", 401, problem.TokenMissing)
	r.rejects("another scheme", 401, problem.TokenMissing, "Basic "+key)
	r.rejects("no scheme", 401, problem.TokenMissing, key)
	r.rejects("no token", 401, problem.TokenMissing, "Bearer  ")
	r.rejects("two headers", 401, problem.TokenInvalid, "Bearer "+key, "Bearer "+key)
	if strings.Contains(r.log.String(), secret) {
		t.Error("the log contains a secret")
	}
}

func TestForbid_NamesTheScope(t *testing.T) {
	p := Forbid(Refresh)
	if p.Status != 403 || p.Code != problem.InsufficientScope || !strings.Contains(p.Detail, "refresh") ||
		p.Header.Get("WWW-Authenticate") != `Bearer realm="freshet", error="insufficient_scope", scope="refresh"` {
		t.Errorf("got %+v, want the scope in WWW-Authenticate", p)
	}
}

func TestAdminToken_FollowsItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := strings.Repeat("a1", 16), strings.Repeat("b2", 16)
		file := write(t, " "+one+"\n")
		g, keys := fakeGuard(t, func(c *Config) { c.AdminTokenFile = file })
		r := &rig{TB: t, Guard: g}
		r.accepts("the admin token", "admin-token", "Bearer "+one, Admin)
		r.rejects("another", 401, problem.TokenInvalid, "Bearer "+two)
		for _, step := range []struct{ text, token string }{{two, two}, {"short", two}, {"", two}, {two + " " + two, two}, {one, one}} {
			if err := os.WriteFile(file, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(keyReadInterval)
			synctest.Wait()
			r.accepts(step.text, "admin-token", "Bearer "+step.token, Admin)
		}
		r.rejects("the one before", 401, problem.TokenInvalid, "Bearer "+two)
		if keys.reads() != 6 {
			t.Errorf("got %d reads of the keys", keys.reads())
		}
	})
}

func TestAdminToken_IsRevokedWithItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := strings.Repeat("a1", 16), strings.Repeat("b2", 16)
		file := write(t, one)
		g, _ := fakeGuard(t, func(c *Config) { c.AdminTokenFile = file })
		r := &rig{TB: t, Guard: g}
		look := func() { time.Sleep(keyReadInterval); synctest.Wait() }
		remove := func() {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		put := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		remove()
		look()
		r.accepts("missing once: it may be being replaced", "admin-token", "Bearer "+one, Admin)
		put(one)
		look()
		remove()
		look()
		r.accepts("missing once more", "admin-token", "Bearer "+one, Admin)
		for range 3 {
			look()
			r.rejects("missing twice in a row", 401, problem.TokenInvalid, "Bearer "+one)
		}
		put("short")
		look()
		r.rejects("an invalid token file", 401, problem.TokenInvalid, "Bearer "+one)
		put(two)
		look()
		r.accepts("a new one", "admin-token", "Bearer "+two, Admin)
	})
}

// fakeKeys is a KeyStore that can fail.
type fakeKeys struct {
	mu   sync.Mutex
	keys []store.APIKey
	err  error
	n    int
}

func (f *fakeKeys) Keys(context.Context, bool) ([]store.APIKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return f.keys, f.err
}

func (f *fakeKeys) set(err error, keys ...store.APIKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys, f.err = keys, err
}

func (f *fakeKeys) reads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

func (f *fakeKeys) AddKey(context.Context, store.APIKey, store.AuditEntry) error { return f.err }

func (f *fakeKeys) RevokeKey(context.Context, string, string, time.Time, store.AuditEntry) error {
	return f.err
}

// fakeGuard returns a guard with a fakeKeys store, for use in a synctest bubble.
func fakeGuard(t *testing.T, change func(*Config)) (*Guard, *fakeKeys) {
	t.Helper()
	c, keys := DefaultConfig(), &fakeKeys{}
	change(&c)
	g, err := New(c, keys, slog.New(slog.DiscardHandler), prometheus.NewPedanticRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g, keys
}

func TestKeys_StayValidWithoutDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, keys := fakeGuard(t, func(*Config) {})
		r := &rig{TB: t, Guard: g}
		id, hash, fullKey := makeKey()
		look := func(err error, k ...store.APIKey) {
			keys.set(err, k...)
			time.Sleep(keyReadInterval)
			synctest.Wait()
		}
		look(nil, store.APIKey{ID: id, Hash: hash, Name: "a", Scopes: []string{"read"}})
		r.accepts("a key", "key:"+id+" a", "Bearer "+fullKey, Read)
		for range 3 {
			look(errors.New("unavailable"))
			r.accepts("in an outage", "key:"+id+" a", "Bearer "+fullKey, Read)
		}
		look(nil)
		r.rejects("revoked", 401, problem.TokenInvalid, "Bearer "+fullKey)
	})
}

func TestKeys_InvalidOneIsIgnored(t *testing.T) {
	r := newRig(t, nil)
	id, key := r.createKey("a dashboard", time.Time{}, "read")
	broken := store.APIKey{ID: "aaaaaaaaaaaa", Name: "broken", Scopes: []string{"admin"}, CreatedAt: now}
	if err := r.db.AddKey(t.Context(), broken, auditEntry(actionCreate, "a test", now, nil, &broken)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := r.readLiveKeys(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.accepts("the other", "key:"+id+" a dashboard", "Bearer "+key, Read)
	if _, known := r.keys.Load().byID[broken.ID]; known || strings.Count(r.log.String(), broken.ID) != 1 {
		t.Errorf("got %v valid keys; log %s", known, r.log.String())
	}
}

func TestLoad_FailsWithAHint(t *testing.T) {
	g, err := New(DefaultConfig(), &fakeKeys{err: errors.New("no table")}, slog.New(slog.DiscardHandler), prometheus.NewPedanticRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "freshet migrate up") {
		t.Errorf("got %v, want a hint at freshet migrate up", err)
	}
	for text, mention := range map[string]string{"too-short": "at least 32 characters", strings.Repeat("two ", 20): "one word"} {
		c := DefaultConfig()
		c.AdminTokenFile = write(t, text)
		if _, err := New(c, &fakeKeys{}, nil, prometheus.NewPedanticRegistry()); err == nil || !strings.Contains(err.Error(), "access.adminTokenFile: ") ||
			!strings.Contains(err.Error(), mention) || strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestAdmin_AuthenticatesOnce(t *testing.T) {
	r := newRig(t, nil)
	_, reader := r.createKey("reader", time.Time{}, "read", "refresh")
	id, admin := r.createKey("on call", time.Time{}, "admin")
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := ""
	h := r.Admin(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { c, _ := ClientFromContext(r.Context()); seen = c.Name }))
	call := func(ctx context.Context, token string) int {
		seen = ""
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		return rec.Code
	}
	known := WithClient(t.Context(), Client{Name: "jwt:x", Scopes: []Scope{Admin}})
	lesser := WithClient(t.Context(), Client{Name: "jwt:y", Scopes: []Scope{Read}})
	for i, c := range []struct {
		ctx    context.Context
		token  string
		status int
		name   string
	}{
		{t.Context(), "", 401, ""},
		{t.Context(), reader, 403, ""},
		{t.Context(), admin, 200, "key:" + id + " on call"},
		{known, "", 200, "jwt:x"},
		{lesser, admin, 403, ""},
	} {
		if status := call(c.ctx, c.token); status != c.status || seen != c.name {
			t.Errorf("%d: got status %d as client %q", i, status, seen)
		}
	}
}

func FuzzAuthenticate(f *testing.F) {
	r := newRig(f, nil)
	id, key := r.createKey("a", time.Time{}, "read")
	if err := r.readLiveKeys(f.Context()); err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", "Bearer", "Bearer " + key, "bearer " + key, "Bearer fsk_", "Bearer a.b.c", "Basic eDp5", "Bearer \x00", "Bearer " + key + " x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		req := &http.Request{Header: http.Header{"Authorization": {header}}}
		c, err := r.Authenticate(req, "192.0.2.7")
		if held := strings.Contains(header, key); err == nil && (!held || c.Name != "key:"+id+" a") {
			t.Errorf("%q: got the client %+v", header, c)
		}
	})
}

func TestGuard_RejectsKeysOlderThanMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, keys := fakeGuard(t, func(*Config) {})
		r := &rig{TB: t, Guard: g}
		readID, readHash, reader := makeKey()
		adminID, adminHash, admin := makeKey()
		all := []store.APIKey{
			{ID: readID, Hash: readHash, Name: "r", Scopes: []string{"read"}},
			{ID: adminID, Hash: adminHash, Name: "a", Scopes: []string{"read", "admin"}},
		}
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		keys.set(nil, all...)
		wait(keyReadInterval)
		keys.set(errors.New("unavailable"))
		wait(4 * time.Minute)
		r.accepts("an admin key after 4 minutes", "key:"+adminID+" a", "Bearer "+admin, Read, Admin)
		wait(time.Minute + time.Second)
		r.rejects("an admin key after 5 minutes", 503, problem.KeysUnavailable, "Bearer "+admin)
		r.rejects("a forged admin key after 5 minutes", 401, problem.TokenInvalid, "Bearer "+admin[:len(admin)-1]+"_")
		r.accepts("a read key after 5 minutes", "key:"+readID+" r", "Bearer "+reader, Read)
		g.removeKey(adminID)
		r.rejects("an admin key revoked here", 401, problem.TokenInvalid, "Bearer "+admin)
		wait(24*time.Hour - 6*time.Minute)
		r.accepts("a read key within 24 hours", "key:"+readID+" r", "Bearer "+reader, Read)
		wait(2 * time.Minute)
		r.rejects("a read key after 24 hours", 503, problem.KeysUnavailable, "Bearer "+reader)
		keys.set(nil, all...)
		wait(keyReadInterval)
		r.accepts("a read key read again", "key:"+readID+" r", "Bearer "+reader, Read)
		r.accepts("an admin key read again", "key:"+adminID+" a", "Bearer "+admin, Read, Admin)
	})
}

func TestGuard_LogsWhenKeysBecomeTooOld(t *testing.T) {
	r := newRig(t, nil)
	r.at = r.at.Add(5 * time.Minute)
	if r.reportAge(false) || r.log.Len() > 0 {
		t.Errorf("after 5 minutes: got %q, want nothing", r.log.String())
	}
	r.at = r.at.Add(time.Second)
	if !r.reportAge(false) || !strings.Contains(r.log.String(), "level=ERROR") {
		t.Errorf("after 5 minutes and a second: got %q, want an error", r.log.String())
	}
	r.log.Reset()
	if !r.reportAge(true) || r.log.Len() > 0 {
		t.Errorf("the second time: got %q, want nothing", r.log.String())
	}
	if err := r.readLiveKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.reportAge(true) || !strings.Contains(r.log.String(), "works again") {
		t.Errorf(`after a read: got %q, want "api keys works again"`, r.log.String())
	}
}
