package token

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// request returns the header Authorization and the body of the request for a token.
func request(t *testing.T, c Config, secrets map[string]string, refresh string) (*http.Request, string) {
	t.Helper()
	if err := c.Check(false); err != nil {
		t.Fatal(err)
	}
	req, err := c.NewRequest(t.Context(), secrets, refresh, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	return req, string(text)
}

func TestNewRequest_WritesEachGrant(t *testing.T) {
	secrets := map[string]string{secretClientSecret: "a&b", secretRefresh: "first"}
	for name, test := range map[string]struct {
		config          Config
		refresh         string
		body, authorize string
	}{
		"client credentials in the body": {
			Config{Grant: ClientCredentials, TokenURL: "https://a.example/t", ClientID: "id", ClientSecretEnv: "S", Scopes: []string{"x", "y"}, Params: map[string]string{"audience": "z"}},
			"",
			"audience=z&client_id=id&client_secret=a%26b&grant_type=client_credentials&scope=x+y", "",
		},
		"client credentials in the header": {
			Config{Grant: ClientCredentials, TokenURL: "https://a.example/t", ClientID: "id", ClientSecretEnv: "S", ClientAuth: "basic"},
			"",
			"grant_type=client_credentials", "Basic aWQ6YSUyNmI=",
		},
		"first refresh token": {
			Config{Grant: RefreshToken, TokenURL: "https://a.example/t", ClientID: "id", RefreshTokenEnv: "R", ClientAuth: "basic", ClientSecretEnv: "S"},
			"",
			"grant_type=refresh_token&refresh_token=first", "Basic aWQ6YSUyNmI=",
		},
		"stored refresh token": {
			Config{Grant: RefreshToken, TokenURL: "https://a.example/t", ClientID: "id"},
			"stored",
			"client_id=id&client_secret=a%26b&grant_type=refresh_token&refresh_token=stored", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			req, got := request(t, test.config, secrets, test.refresh)
			if got != test.body || req.Header.Get("Authorization") != test.authorize {
				t.Errorf("got %s, Authorization %q, want %s, %q", got, req.Header.Get("Authorization"), test.body, test.authorize)
			}
		})
	}
}

func TestNewRequest_EscapesSecretsOfLogin(t *testing.T) {
	c := Config{Grant: Login, Request: &Request{
		URL: "https://a.example/login?u={user}", Body: `{"password":"{password}"}`, Headers: map[string]string{"X-Key": "k {user}"},
		Secrets: map[string]Secret{"user": {Env: "U"}, "password": {Env: "P"}},
	}}
	req, body := request(t, c, map[string]string{"user": "a&b=c", "password": `x","admin":"1`}, "")
	if req.URL.RawQuery != "u=a%26b%3Dc" || body != `{"password":"x\",\"admin\":\"1"}` || req.Header.Get("X-Key") != "k a&b=c" {
		t.Errorf("got %s, %s, %v", req.URL, body, req.Header)
	}
	if _, err := c.NewRequest(t.Context(), map[string]string{"user": "a"}, "", time.Now()); err == nil || !strings.Contains(err.Error(), "password: has no value") {
		t.Errorf("missing secret: got %v", err)
	}
}

func keyPEM(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// The JWT is verified by another implementation, golang-jwt.
func TestSignJWT_IsVerifiedByGolangJWT(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		key, public any
		method      string
	}{{rsaKey, &rsaKey.PublicKey, "RS256"}, {ecKey, &ecKey.PublicKey, "ES256"}} {
		c := Config{Grant: JWTBearer, TokenURL: "https://a.example/t", Scopes: []string{"read"}, JWT: &JWT{KeyEnv: "K", KeyID: "k1", Issuer: "app", Subject: "user", SendIn: "header"}}
		req, body := request(t, c, map[string]string{secretKey: keyPEM(t, test.key)}, "")
		signed := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer ")
		parsed, err := jwt.Parse(signed, func(*jwt.Token) (any, error) { return test.public, nil },
			jwt.WithValidMethods([]string{test.method}), jwt.WithAudience(c.TokenURL), jwt.WithIssuer("app"), jwt.WithSubject("user"), jwt.WithIssuedAt(), jwt.WithExpirationRequired())
		if err != nil || parsed.Header["kid"] != "k1" || parsed.Claims.(jwt.MapClaims)["scope"] != "read" || strings.Contains(body, "assertion") {
			t.Errorf("%s: got %v, %v", test.method, parsed, err)
		}
		c.JWT.SendIn = ""
		if req, body := request(t, c, map[string]string{secretKey: keyPEM(t, test.key)}, ""); req.Header.Get("Authorization") != "" || !strings.Contains(body, "assertion=ey") {
			t.Errorf("%s in the form: got %s", test.method, body)
		}
	}
	for _, bad := range []string{"", "no PEM", keyPEM(t, mustP384(t))} {
		c := Config{Grant: JWTBearer, TokenURL: "https://a.example/t", JWT: &JWT{KeyEnv: "K"}}
		if _, err := c.NewRequest(context.Background(), map[string]string{secretKey: bad}, "", time.Now()); err == nil || strings.Contains(err.Error(), "PRIVATE KEY") {
			t.Errorf("key %.20q: got %v", bad, err)
		}
	}
}

func mustP384(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestDo_ReadsBodyHeaderAndCookie(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			t.Error("a redirect was followed")
		}
		if r.URL.Path == "/redirect" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("X-Token", "from-header")
		http.SetCookie(w, &http.Cookie{Name: "SESSION", Value: "from-cookie", MaxAge: 600})
		_, _ = w.Write([]byte(`{"data": {"token": "from-body", "ends": "` + time.Now().Add(2*time.Hour).UTC().Format(time.RFC3339) + `"}, "refresh_token": "next"}`))
	}))
	defer server.Close()
	for name, test := range map[string]struct {
		config   Config
		value    string
		lifetime time.Duration
	}{
		"body":   {Config{Value: "body:data.token", Expires: "body:data.ends"}, "from-body", 2 * time.Hour},
		"header": {Config{Value: "header:X-Token", Lifetime: 5 * time.Minute}, "from-header", 5 * time.Minute},
		"cookie": {Config{Value: "cookie:SESSION", Expires: "cookie:SESSION"}, "from-cookie", 10 * time.Minute},
	} {
		test.config.Grant, test.config.Request = Login, &Request{URL: server.URL}
		req, _ := request(t, test.config, nil, "")
		got, err := test.config.Do(NewClient(time.Minute), req, nil)
		if err != nil || got.Value != test.value || got.Refresh != "next" || (got.Lifetime-test.lifetime).Abs() > 5*time.Second {
			t.Errorf("%s: got %+v, %v, want %s for %v", name, got, err, test.value, test.lifetime)
		}
	}
	c := Config{Grant: Login, Request: &Request{URL: server.URL + "/redirect"}}
	req, _ := request(t, c, nil, "")
	if _, err := c.Do(NewClient(time.Minute), req, nil); err == nil || !strings.Contains(err.Error(), "answered 307") {
		t.Errorf("redirect: got %v, want an error", err)
	}
}

func TestCheck_NamesTheSetting(t *testing.T) {
	for setting, c := range map[string]Config{
		"grant":               {},
		"tokenURL":            {Grant: ClientCredentials, TokenURL: "http://far.example/t"},
		"clientId":            {Grant: ClientCredentials, TokenURL: "https://a.example/t"},
		"clientSecretFile":    {Grant: ClientCredentials, TokenURL: "https://a.example/t", ClientID: "a"},
		"jwt":                 {Grant: JWTBearer, TokenURL: "https://a.example/t"},
		"request":             {Grant: Login},
		"request.body":        {Grant: Login, Request: &Request{URL: "https://a.example", Body: "{other}"}},
		"value":               {Grant: Login, Request: &Request{URL: "https://a.example"}, Value: "access_token"},
		"consent.redirectURL": {Grant: RefreshToken, TokenURL: "https://a.example/t", ClientID: "a", Consent: Consent{RedirectURL: "https://far.example/callback"}},
		"refreshTokenFile":    {Grant: ClientCredentials, TokenURL: "https://a.example/t", ClientID: "a", ClientSecretEnv: "S", RefreshTokenEnv: "R"},
	} {
		if err := c.Check(false); err == nil || !strings.HasPrefix(err.Error(), setting+":") {
			t.Errorf("%s: got %v", setting, err)
		}
	}
}
