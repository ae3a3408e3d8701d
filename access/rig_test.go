package access

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store/sqlite"
)

// signers are the private keys of the test issuer, by name. They are created once, because
// creating an RSA key is slow.
var signers = sync.OnceValue(func() map[string]crypto.Signer {
	one, err1 := rsa.GenerateKey(rand.Reader, 2048)
	two, err2 := rsa.GenerateKey(rand.Reader, 2048)
	curve, err3 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edwards, err4 := ed25519.GenerateKey(rand.Reader)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{"one": one, "two": two, "curve": curve, "edwards": edwards}
})

// fakeIssuer is an HTTP server with the public keys of a token issuer.
type fakeIssuer struct {
	*testing.T
	server  *httptest.Server
	fetches atomic.Int64
	mu      sync.Mutex
	serve   []string // names of the signers whose public keys the server has; nil: the server is unavailable
	alg     string   // parameter alg of every key; empty: the keys have no alg
	raw     string   // response body that replaces the keys; empty: the keys are sent
}

func newFakeIssuer(t *testing.T, serve ...string) *fakeIssuer {
	t.Helper()
	i := &fakeIssuer{T: t, serve: serve}
	i.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.raw != "" {
			_, _ = w.Write([]byte(i.raw))
			return
		}
		if len(i.serve) == 0 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		set := jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{
			{KTY: jwkset.KtyOct, KID: "symmetric", K: "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
			{KTY: "strange", KID: "strange"},
		}}
		for _, name := range i.serve {
			key, err := jwkset.NewJWKFromKey(signers()[name].Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: name, ALG: jwkset.ALG(i.alg)}})
			if err != nil {
				t.Error(err)
			}
			set.Keys = append(set.Keys, key.Marshal())
		}
		if err := json.NewEncoder(w).Encode(set); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(i.server.Close)
	return i
}

func (i *fakeIssuer) serves(names ...string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serve = names
}

func (i *fakeIssuer) servesText(text string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.raw = text
}

// now is the current time of the tests.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// validClaims returns the claims of a valid token, with changes: pairs of a claim name and a
// value, where nil removes the claim.
func validClaims(change ...any) jwt.MapClaims {
	c := jwt.MapClaims{
		"iss": "https://issuer.example", "aud": "freshet", "sub": "somebody", "scope": "read refresh unheard-of",
		"iat": now.Add(-time.Minute).Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	for i := 0; i < len(change); i += 2 {
		if change[i+1] == nil {
			delete(c, change[i].(string))
		} else {
			c[change[i].(string)] = change[i+1]
		}
	}
	return c
}

// sign returns a token with these claims, signed by the named signer. The name is also the
// token's key id (kid).
func sign(t testing.TB, method jwt.SigningMethod, name string, c jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	token.Header["kid"] = name
	return signed(t, token, signers()[name])
}

func signed(t testing.TB, token *jwt.Token, key any) string {
	t.Helper()
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// rig is a guard with an in-memory database.
type rig struct {
	testing.TB
	*Guard
	db  *sqlite.Store
	log bytes.Buffer
	at  time.Time
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{TB: t, db: db, at: now}
	c := DefaultConfig()
	c.Require = Always
	if change != nil {
		change(&c)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if r.Guard, err = New(c, db, slog.New(slog.NewTextHandler(&r.log, nil)), prometheus.NewPedanticRegistry()); err != nil {
		t.Fatal(err)
	}
	r.now = func() time.Time { return r.at }
	if r.verifier != nil {
		r.verifier.now = r.now
	}
	if err := r.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// withIssuer returns a guard and the fakeIssuer whose tokens it accepts. The issuer's server has the
// public keys of the named signers.
func withIssuer(t *testing.T, serve ...string) (*rig, *fakeIssuer) {
	t.Helper()
	i := newFakeIssuer(t, serve...)
	return newRig(t, func(c *Config) {
		c.JWKSURL, c.Issuer, c.Audience = i.server.URL, "https://issuer.example", "freshet"
	}), i
}

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// authenticate authenticates a request with these Authorization headers.
func (r *rig) authenticate(headers ...string) (Client, *problem.HTTPError) {
	r.Helper()
	req := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "http://127.0.0.1:8080/", http.NoBody)
	for _, h := range headers {
		req.Header.Add("Authorization", h)
	}
	c, err := r.Authenticate(req, "192.0.2.7")
	if err == nil {
		return c, nil
	}
	p, ok := errors.AsType[*problem.HTTPError](err)
	if !ok || c.Name != "" || len(c.Scopes) > 0 {
		r.Fatalf("%q: got the client %+v with the error %v", headers, c, err)
	}
	return c, p
}

// rejects fails the test unless the request is rejected with this status and code.
func (r *rig) rejects(what string, status int, code problem.Code, headers ...string) {
	r.Helper()
	c, p := r.authenticate(headers...)
	if p == nil {
		r.Errorf("%s: got the client %+v, want a rejection", what, c)
		return
	}
	if p.Status != status || p.Code != code || (status == 401) != (p.Header.Get("WWW-Authenticate") != "") {
		r.Errorf("%s: got %d %s %v, want %d %s", what, p.Status, p.Code, p.Header, status, code)
	}
}

// accepts fails the test unless the request is accepted as a client with this name and scopes.
func (r *rig) accepts(what, name string, header string, scopes ...Scope) Client {
	r.Helper()
	c, p := r.authenticate(header)
	if p != nil {
		r.Errorf("%s: got %v, want the client %s", what, p, name)
		return c
	}
	if c.Name != name || len(c.Scopes) != len(scopes) {
		r.Errorf("%s: got %+v, want %s with the scopes %v", what, c, name, scopes)
		return c
	}
	for i, s := range scopes {
		if c.Scopes[i] != s {
			r.Errorf("%s: got %+v, want %s with the scopes %v", what, c, name, scopes)
		}
	}
	return c
}
