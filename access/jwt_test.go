package access

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/problem"
)

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func TestVerifier_AcceptsTokensOfTheIssuer(t *testing.T) {
	r, _ := withIssuer(t, "one", "curve", "edwards")
	c := r.accepts("RS256", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims()), Read, Refresh)
	if !c.Expires.Equal(now.Add(time.Hour)) || !c.May(Read) || c.May(Admin) {
		t.Errorf("got %+v, want read and refresh for an hour", c)
	}
	r.accepts("PS256", "jwt:somebody", "bearer "+sign(t, jwt.SigningMethodPS256, "one", validClaims()), Read, Refresh)
	r.accepts("ES256", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodES256, "curve", validClaims()), Read, Refresh)
	r.accepts("EdDSA", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodEdDSA, "edwards", validClaims()), Read, Refresh)
	r.accepts("scp as a list", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("scope", nil, "scp", []string{"admin", "x"})), Admin)
	r.accepts("scp as a text", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("scope", nil, "scp", "read")), Read)
	r.accepts("no scope", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("scope", nil)))
	sees := r.accepts("visibilities", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("scope", "read see:partner see: SEE:staff see:a/b see:partner")), Read, See("partner"))
	if !sees.Sees("") || !sees.Sees("partner") || sees.Sees("staff") || sees.Sees("partne") || sees.May(Refresh) {
		t.Errorf("got %+v, want only the visibility partner", sees)
	}
	r.accepts("one of several audiences", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("aud", []string{"other", "freshet"})), Read, Refresh)
	r.accepts("a clock 20 s behind", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims("nbf", now.Add(20*time.Second).Unix(), "iat", now.Add(20*time.Second).Unix())), Read, Refresh)
	if c, p := r.authenticate("Bearer " + sign(t, jwt.SigningMethodRS256, "one", validClaims("sub", "a\nb"+strings.Repeat("x", 5000)))); p != nil || len(c.Name) > 200 || strings.Contains(c.Name, "\n") {
		t.Errorf("hostile subject: got %q, %v", c.Name, p)
	}
}

func TestVerifier_RejectsInvalidTokensWithoutDetails(t *testing.T) {
	r, _ := withIssuer(t, "one", "curve")
	der, err := x509.MarshalPKIXPublicKey(signers()["one"].Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	rs := func(c jwt.MapClaims) string { return sign(t, jwt.SigningMethodRS256, "one", c) }
	unsigned := jwt.NewWithClaims(jwt.SigningMethodNone, validClaims())
	unsigned.Header["kid"] = "one"
	withPublic := jwt.NewWithClaims(jwt.SigningMethodHS256, validClaims())
	withPublic.Header["kid"] = "one"
	symmetric := jwt.NewWithClaims(jwt.SigningMethodHS256, validClaims())
	symmetric.Header["kid"] = "symmetric"
	secret, err := base64.RawURLEncoding.DecodeString("c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA")
	if err != nil {
		t.Fatal(err)
	}
	otherKey := jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims())
	otherKey.Header["kid"] = "one"
	otherExpired := jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims("exp", now.Add(-time.Hour).Unix()))
	otherExpired.Header["kid"] = "one"
	parts := strings.Split(rs(validClaims()), ".")
	otherKind := jwt.NewWithClaims(jwt.SigningMethodES256, validClaims())
	otherKind.Header["kid"] = "one"
	strange := jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims())
	strange.Header["kid"] = 7
	past := now.Add(-time.Hour).Unix()
	for what, token := range map[string]string{
		"alg none":                       signed(t, unsigned, jwt.UnsafeAllowNoneSignatureType),
		"HS256 with the public key":      signed(t, withPublic, public),
		"HS256 with the public key, raw": signed(t, withPublic, der),
		"HS256 with a key of the set":    signed(t, symmetric, secret),
		"an algorithm not listed":        sign(t, jwt.SigningMethodRS512, "one", validClaims()),
		"another issuer":                 rs(validClaims("iss", "https://issuer.example.evil")),
		"no issuer":                      rs(validClaims("iss", nil)),
		"another audience":               rs(validClaims("aud", "freshet2")),
		"no audience":                    rs(validClaims("aud", nil)),
		"not yet valid":                  rs(validClaims("nbf", now.Add(time.Minute).Unix())),
		"made in the future":             rs(validClaims("iat", now.Add(time.Minute).Unix())),
		"no exp":                         rs(validClaims("exp", nil)),
		"an exp that is no number":       rs(validClaims("exp", "tomorrow")),
		"no sub":                         rs(validClaims("sub", nil)),
		"scopes of another type":         rs(validClaims("scope", 7)),
		"an unknown kid":                 sign(t, jwt.SigningMethodRS256, "two", validClaims()),
		"a kid of another type":          signed(t, strange, signers()["one"]),
		"a forged signature":             signed(t, otherKey, signers()["two"]),
		"forged and expired":             signed(t, otherExpired, signers()["two"]),
		"expired, of another issuer":     rs(validClaims("exp", past, "iss", "x")),
		"expired, for another audience":  rs(validClaims("exp", past, "aud", "x")),
		"a broken header":                strings.Replace(rs(validClaims()), ".", "x.", 1),
		"a key of another kind":          signed(t, otherKind, signers()["curve"]),
		"no signature":                   parts[0] + "." + parts[1] + ".",
		"claims of another":              parts[0] + "." + strings.Split(rs(validClaims("sub", "x")), ".")[1] + "." + parts[2],
		"two parts":                      parts[0] + "." + parts[1],
		"nothing in it":                  "..",
		"far too long":                   rs(validClaims("x", strings.Repeat("x", maxTokenSize))),
	} {
		r.rejects(what, 401, problem.TokenInvalid, "Bearer "+token)
		if _, p := r.authenticate("Bearer " + token); p != nil && (p.Detail != invalidToken().Detail || p.Header.Get("WWW-Authenticate") != `Bearer realm="freshet", error="invalid_token"`) {
			t.Errorf("%s: got %s %v, want no details", what, p.Detail, p.Header)
		}
	}
	r.rejects("expired", 401, problem.TokenExpired, "Bearer "+rs(validClaims("exp", past)))
	r.rejects("expired this moment", 401, problem.TokenExpired, "Bearer "+rs(validClaims("exp", now.Unix())))
	if strings.Contains(r.log.String(), parts[2]) {
		t.Error("the log contains a token")
	}
}

func TestClaims_HaveExactNames(t *testing.T) {
	r, _ := withIssuer(t, "one")
	rs := func(c jwt.MapClaims) string { return "Bearer " + sign(t, jwt.SigningMethodRS256, "one", c) }
	for _, name := range []string{"SCOPE", "scopE", "\u017fcope", "SCP", "\u017fcp"} {
		r.accepts(name, "jwt:somebody", rs(validClaims("scope", "read", name, "admin")), Read)
		r.accepts(name+" alone", "jwt:somebody", rs(validClaims("scope", nil, name, "admin")))
	}
	for _, name := range []string{"\u017fub", "SUB"} {
		r.accepts(name, "jwt:somebody", rs(validClaims(name, "boss")), Read, Refresh)
		r.rejects(name+" alone", 401, problem.TokenInvalid, rs(validClaims("sub", nil, name, "boss")))
	}
	r.rejects("EXP alone", 401, problem.TokenInvalid, rs(validClaims("exp", nil, "EXP", now.Add(time.Hour).Unix())))
	r.rejects("AUD alone", 401, problem.TokenInvalid, rs(validClaims("aud", nil, "AUD", "freshet")))
	r.rejects("Iss alone", 401, problem.TokenInvalid, rs(validClaims("iss", nil, "Iss", "https://issuer.example")))
}

// signRaw returns a token with claims given as JSON text, signed with the named key.
func signRaw(t *testing.T, name, text string) string {
	t.Helper()
	head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"` + name + `"}`))
	body := head + "." + base64.RawURLEncoding.EncodeToString([]byte(text))
	sig, err := jwt.SigningMethodRS256.Sign(body, signers()[name])
	if err != nil {
		t.Fatal(err)
	}
	return body + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func TestClaims_DuplicateIsRejected(t *testing.T) {
	r, _ := withIssuer(t, "one")
	all := fmt.Sprintf(`"iss":"https://issuer.example","aud":"freshet","sub":"somebody","exp":%d`, now.Add(time.Hour).Unix())
	r.accepts("once", "jwt:somebody", "Bearer "+signRaw(t, "one", `{`+all+`,"scope":"read"}`), Read)
	for _, claims := range []string{
		`{` + all + `,"scope":"read","scope":"admin"}`, `{` + all + `,"scope":"read","\u0073cope":"admin"}`, `{"sub":"boss",` + all + `}`,
		`[{` + all + `}]`, `null`, `"` + "x" + `"`, `{` + all + `} {}`, `{` + all, ``,
	} {
		r.rejects(claims, 401, problem.TokenInvalid, "Bearer "+signRaw(t, "one", claims))
	}
}

func TestVerifier_TokenWithoutKidNeedsASingleKey(t *testing.T) {
	token := "Bearer " + signed(t, jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims()), signers()["two"])
	r, i := withIssuer(t, "two")
	r.accepts("the only key", "jwt:somebody", token, Read, Refresh)
	i.serves("one", "two")
	r.verifier.fetch(t.Context())
	r.rejects("one of two keys", 401, problem.TokenInvalid, token)
	i.serves("one")
	r.verifier.fetch(t.Context())
	r.rejects("another key", 401, problem.TokenInvalid, token)
}

func TestVerifier_KeyHasOneAlgorithm(t *testing.T) {
	r, i := withIssuer(t, "one")
	i.mu.Lock()
	i.alg = "PS256"
	i.mu.Unlock()
	r.verifier.fetch(t.Context())
	r.accepts("its own", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodPS256, "one", validClaims()), Read, Refresh)
	r.rejects("another", 401, problem.TokenInvalid, "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims()))
	r.rejects("another, and no kid", 401, problem.TokenInvalid, "Bearer "+signed(t, jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims()), signers()["one"]))
}

func TestVerifier_UnknownKeyIsUnavailableInAnOutage(t *testing.T) {
	r, i := withIssuer(t, "one")
	i.serves()
	two := "Bearer " + sign(t, jwt.SigningMethodRS256, "two", validClaims())
	for range 3 {
		r.rejects("an unknown kid", 503, problem.KeysUnavailable, two)
	}
	r.accepts("a known one", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims()), Read, Refresh)
	if i.fetches.Load() != 2 {
		t.Errorf("got %d fetches", i.fetches.Load())
	}
	i.serves("two")
	r.at = r.at.Add(unknownKeyInterval)
	r.accepts("after the outage", "jwt:somebody", two, Read, Refresh)
}

func TestVerifier_EmptyKeySetRevokesAll(t *testing.T) {
	r, i := withIssuer(t, "one")
	token := "Bearer " + sign(t, jwt.SigningMethodRS256, "one", validClaims())
	for _, text := range []string{`{}`, `{"keys":null}`, `[]`, `{"keys":[{"kty":"strange"}]}`, `no JSON`} {
		i.servesText(text)
		r.verifier.fetch(t.Context())
		r.accepts("an invalid key set changes nothing: "+text, "jwt:somebody", token, Read, Refresh)
	}
	i.servesText(`{"keys":[]}`)
	r.verifier.fetch(t.Context())
	r.rejects("withdrawn", 401, problem.TokenInvalid, token)
	r.rejects("withdrawn, and no kid", 401, problem.TokenInvalid, "Bearer "+signed(t, jwt.NewWithClaims(jwt.SigningMethodRS256, validClaims()), signers()["one"]))
}

func TestVerifier_FollowsOnlyHTTPSRedirects(t *testing.T) {
	check := newVerifier(Config{}, nil, nil).keySet.client.CheckRedirect
	for _, c := range []struct {
		from, to string
		follows  bool
	}{
		{"https://a.example/keys", "https://b.example/keys", true},
		{"https://a.example/keys", "http://127.0.0.1/keys", false},
		{"https://a.example/keys", "http://b.example/keys", false},
		{"http://127.0.0.1/keys", "https://b.example/keys", false},
		{"http://127.0.0.1/keys", "http://127.0.0.1/other", false},
		{"https://a.example/keys", "https://u:p@b.example/keys", false},
	} {
		from := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.from, http.NoBody)
		to := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.to, http.NoBody)
		if err := check(to, []*http.Request{from}); (err == nil) != c.follows {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func TestVerifier_LimitsFetchesForUnknownKids(t *testing.T) {
	r, i := withIssuer(t, "one")
	if i.fetches.Load() != 1 {
		t.Fatalf("got %d fetches at the start", i.fetches.Load())
	}
	i.serves("two")
	r.accepts("the new key", "jwt:somebody", "Bearer "+sign(t, jwt.SigningMethodRS256, "two", validClaims()), Read, Refresh)
	r.rejects("the key that is gone", 401, problem.TokenInvalid, "Bearer "+sign(t, jwt.SigningMethodRS256, "one", validClaims()))
	for range 50 {
		r.rejects("a made up kid", 401, problem.TokenInvalid, "Bearer "+sign(t, jwt.SigningMethodES256, "curve", validClaims()))
	}
	if i.fetches.Load() != 2 {
		t.Errorf("got %d fetches", i.fetches.Load())
	}
	r.at = r.at.Add(unknownKeyInterval)
	r.rejects("a made up kid", 401, problem.TokenInvalid, "Bearer "+sign(t, jwt.SigningMethodES256, "curve", validClaims()))
	if i.fetches.Load() != 3 {
		t.Errorf("got %d fetches after unknownKeyInterval", i.fetches.Load())
	}
}

func TestVerifier_OutageDoesNotAffectAPIKeys(t *testing.T) {
	r, i := withIssuer(t)
	token := "Bearer " + sign(t, jwt.SigningMethodRS256, "one", validClaims())
	r.rejects("before there are keys", 503, problem.KeysUnavailable, token)
	if _, p := r.authenticate(token); p.After != fetchRetryDelay {
		t.Errorf("got Retry-After %v", p.After)
	}
	r.rejects("not a token", 401, problem.TokenInvalid, "Bearer x")
	if !strings.Contains(r.log.String(), "can't be fetched") {
		t.Error(r.log.String())
	}
	i.serves("one")
	r.verifier.fetch(t.Context())
	r.accepts("afterwards", "jwt:somebody", token, Read, Refresh)
	i.serves()
	r.verifier.fetch(t.Context())
	r.accepts("in an outage", "jwt:somebody", token, Read, Refresh)
}

func TestVerifier_FetchesKeysPeriodically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetches := 0
		s := &keySet{MemoryJWKSet: jwkset.NewMemoryStorage(), url: "https://issuer.example", log: slog.New(slog.DiscardHandler), now: time.Now, client: &http.Client{Transport: transport(func(*http.Request) (*http.Response, error) {
			fetches++
			return nil, http.ErrServerClosed
		})}}
		done := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { s.run(ctx); close(done) }()
		time.Sleep(fetchRetryDelay * 3)
		synctest.Wait()
		if fetches != 3 {
			t.Errorf("got %d fetches, want 3", fetches)
		}
		cancel()
		<-done
	})
}

// signWithHeader returns a token with additional header parameters; nil removes a parameter.
func signWithHeader(t *testing.T, c jwt.MapClaims, parameters map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, c)
	token.Header["kid"] = "one"
	for name, value := range parameters {
		if value == nil {
			delete(token.Header, name)
		} else {
			token.Header[name] = value
		}
	}
	return "Bearer " + signed(t, token, signers()["one"])
}

func TestVerifier_RejectsCriticalHeaders(t *testing.T) {
	r, _ := withIssuer(t, "one")
	for _, crit := range []any{[]string{"urn:x"}, []string{"exp"}, []string{"b64"}, []string{}, "x", 7, false} {
		r.rejects(fmt.Sprintf("crit %v", crit), 401, problem.TokenInvalid, signWithHeader(t, validClaims(), map[string]any{"crit": crit, "urn:x": 1}))
	}
}

func TestVerifier_AcceptsOnlyListedTypes(t *testing.T) {
	defaults, i := withIssuer(t, "one")
	strict := newRig(t, func(c *Config) {
		c.JWKSURL, c.Issuer, c.Audience, c.Types = i.server.URL, "https://issuer.example", "freshet", []string{"at+jwt"}
	})
	for _, c := range []struct {
		typ                any
		defaults, strictly bool
	}{
		{"at+jwt", true, true},
		{"AT+JWT", true, true},
		{"application/at+jwt", true, true},
		{"JWT", true, false},
		{"jwt", true, false},
		{nil, true, false},
		{"", false, false},
		{"logout+jwt", false, false},
		{"secevent+jwt", false, false},
		{"dpop+jwt", false, false},
		{"application/application/at+jwt", false, false},
		{"x/at+jwt", false, false},
		{7, false, false},
		{[]string{"at+jwt"}, false, false},
	} {
		token := signWithHeader(t, validClaims(), map[string]any{"typ": c.typ})
		for name, one := range map[string]struct {
			*rig
			accepts bool
		}{"by default": {defaults, c.defaults}, "at+jwt alone": {strict, c.strictly}} {
			if _, p := one.authenticate(token); (p == nil) != one.accepts {
				t.Errorf("%s, typ %v: got %v, want accepted: %v", name, c.typ, p, one.accepts)
			}
		}
	}
}

func TestVerifier_RejectsIDAndLogoutTokens(t *testing.T) {
	r, _ := withIssuer(t, "one")
	for name, claim := range map[string][]any{
		"nonce":             {"nonce", "n-0S6_WzA2Mj"},
		"hash of a token":   {"at_hash", "77QmUPtjPfzWtF2AnpK9RQ"},
		"hash of a code":    {"c_hash", "LDktKdoQak3Pk0cnXxCltA"},
		"logout event":      {"events", map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}},
		"Keycloak, ID":      {"typ", "ID"},
		"Keycloak, refresh": {"typ", "Refresh"},
		"Keycloak, offline": {"typ", "Offline"},
		"Keycloak, logout":  {"typ", "Logout"},
		"Cognito, ID":       {"token_use", "id"},
	} {
		for _, typ := range []any{"JWT", nil} {
			r.rejects(name, 401, problem.TokenInvalid, signWithHeader(t, validClaims(claim...), map[string]any{"typ": typ}))
		}
	}
	r.accepts("Keycloak, access", "jwt:somebody", signWithHeader(t, validClaims("typ", "Bearer"), nil), Read, Refresh)
	r.accepts("Cognito, access", "jwt:somebody", signWithHeader(t, validClaims("token_use", "access"), nil), Read, Refresh)
	r.accepts("RFC 9068 with the claims of a login", "jwt:somebody", signWithHeader(t, validClaims("nonce", "x", "auth_time", 1), map[string]any{"typ": "at+jwt"}), Read, Refresh)
}

func TestVerifier_CountsOnlyScopesWithThePrefix(t *testing.T) {
	_, i := withIssuer(t, "one")
	r := newRig(t, func(c *Config) {
		c.JWKSURL, c.Issuer, c.Audience, c.ScopePrefix = i.server.URL, "https://issuer.example", "freshet", "freshet:"
	})
	r.accepts("bare", "jwt:somebody", signWithHeader(t, validClaims("scope", "admin read see:hr"), nil))
	r.accepts("prefixed", "jwt:somebody", signWithHeader(t, validClaims("scope", "admin freshet:read freshet:see:hr freshet:freshet:admin FRESHET:admin freshet:x"), nil), Read, See("hr"))
	r.accepts("prefixed, in scp", "jwt:somebody", signWithHeader(t, validClaims("scope", nil, "scp", []string{"freshet:admin"}), nil), Admin)
}

func TestVerifier_RejectsSigningKeysOlderThanMaxAge(t *testing.T) {
	r, i := withIssuer(t, "one")
	token := "Bearer " + sign(t, jwt.SigningMethodRS256, "one", validClaims("exp", now.Add(72*time.Hour).Unix()))
	i.serves()
	r.at = r.at.Add(24 * time.Hour)
	r.verifier.fetch(t.Context())
	r.accepts("after 24 hours", "jwt:somebody", token, Read, Refresh)
	r.at = r.at.Add(time.Second)
	r.rejects("after 24 hours and a second", 503, problem.KeysUnavailable, token)
	if got, want := testutil.ToFloat64(r.metrics.signingKeysReadAt), float64(now.Unix()); got != want {
		t.Errorf("access_signing_keys_read_timestamp_seconds: got %v, want %v", got, want)
	}
	i.serves("one")
	r.verifier.fetch(t.Context())
	r.accepts("fetched again", "jwt:somebody", token, Read, Refresh)
}
