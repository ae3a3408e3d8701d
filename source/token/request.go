package token

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

var placeholder = regexp.MustCompile(`\{([0-9A-Za-z_]+)\}`)

// ErrNoRefreshToken is returned if there is neither a stored nor a first refresh token.
var ErrNoRefreshToken = errors.New("there is no refresh token; run `freshet credentials authorize`, or set refreshTokenFile")

// NewRequest returns the request for a token. `secrets` are the values of Config.Secrets by name.
// `refresh` is the stored refresh token; empty means that the first one is used. `now` is the time of
// the claims.
func (c Config) NewRequest(ctx context.Context, secrets map[string]string, refresh string, now time.Time) (*http.Request, error) {
	if refresh == "" {
		refresh = secrets[secretRefresh]
	}
	if c.Grant == Login {
		return c.Request.build(ctx, secrets, refresh)
	}
	form := url.Values{}
	for name, value := range c.Params {
		form.Set(name, value)
	}
	if len(c.Scopes) > 0 {
		form.Set("scope", strings.Join(c.Scopes, " "))
	}
	bearer := ""
	switch c.Grant {
	case ClientCredentials:
		form.Set("grant_type", "client_credentials")
	case RefreshToken:
		if refresh == "" {
			return nil, ErrNoRefreshToken
		}
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", refresh)
	case JWTBearer:
		signed, err := c.signJWT(secrets[secretKey], c.clientID(secrets), now)
		if err != nil {
			return nil, fmt.Errorf("jwt: %w", err)
		}
		if bearer = signed; c.JWT.SendIn != "header" {
			form.Set("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
			form.Set("assertion", signed)
			form.Del("scope") // the JWT has the scope as a claim
			bearer = ""
		}
	}
	return c.post(ctx, c.TokenURL, form, secrets, bearer)
}

// NewCodeRequest returns the request that exchanges an authorization code for tokens (RFC 7636).
func (c Config) NewCodeRequest(ctx context.Context, secrets map[string]string, code, verifier, redirect string) (*http.Request, error) {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "code_verifier": {verifier}, "redirect_uri": {redirect}}
	return c.post(ctx, c.TokenURL, form, secrets, "")
}

// NewRevokeRequest returns the request that revokes a token (RFC 7009).
func (c Config) NewRevokeRequest(ctx context.Context, secrets map[string]string, value, hint string) (*http.Request, error) {
	return c.post(ctx, c.Consent.RevokeURL, url.Values{"token": {value}, "token_type_hint": {hint}}, secrets, "")
}

// AuthorizeURL returns the page on which a person agrees. `challenge` is the SHA-256 of the verifier.
func (c Config) AuthorizeURL(secrets map[string]string, state, challenge, redirect string) (string, error) {
	u, err := url.Parse(c.Consent.AuthorizeURL)
	if err != nil || c.Consent.AuthorizeURL == "" {
		return "", errors.New("consent.authorizeURL: is missing; it is the page on which a person agrees")
	}
	query := u.Query()
	for name, value := range c.Consent.Params {
		query.Set(name, value)
	}
	for name, value := range map[string]string{
		"response_type": "code", "client_id": c.clientID(secrets), "redirect_uri": redirect, "state": state,
		"code_challenge": challenge, "code_challenge_method": "S256", "scope": strings.Join(c.Scopes, " "),
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func (c Config) clientID(secrets map[string]string) string {
	return cmp.Or(c.ClientID, secrets[secretClientID])
}

// post returns a POST of the form. A JWT that is the bearer token replaces the client's credentials.
func (c Config) post(ctx context.Context, to string, form url.Values, secrets map[string]string, bearer string) (*http.Request, error) {
	id, secret := c.clientID(secrets), secrets[secretClientSecret]
	if bearer == "" && c.ClientAuth != "basic" && id != "" && c.Grant != JWTBearer {
		form.Set("client_id", id)
		if secret != "" {
			form.Set("client_secret", secret)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	setHeaders(req)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	switch {
	case bearer != "":
		req.Header.Set("Authorization", "Bearer "+bearer)
	case c.ClientAuth == "basic":
		req.SetBasicAuth(url.QueryEscape(id), url.QueryEscape(secret)) // the two texts must be percent-encoded (RFC 6749 §2.3.1)
	}
	return req, nil
}

func setHeaders(req *http.Request) {
	req.Header.Set("User-Agent", "freshet")
	req.Header.Set("Accept", "application/json")
}

// build returns the request of the grant login. Each value is escaped for its place, so that it
// cannot change the structure of the request.
func (r Request) build(ctx context.Context, secrets map[string]string, refresh string) (*http.Request, error) {
	missing := ""
	fill := func(text string, escape func(string) string) string {
		return placeholder.ReplaceAllStringFunc(text, func(found string) string {
			name := found[1 : len(found)-1]
			value := secrets[name]
			if name == secretRefresh {
				value = refresh
			}
			if value == "" {
				missing = name
			}
			return escape(value)
		})
	}
	kind := cmp.Or(r.ContentType, "application/json")
	escape := escapeJSON
	if strings.HasPrefix(kind, "application/x-www-form-urlencoded") {
		escape = url.QueryEscape
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodPost), fill(r.URL, url.QueryEscape), strings.NewReader(fill(r.Body, escape)))
	if err != nil {
		return nil, errors.New("request.url: is not a URL after its placeholders are filled") // the cause would show the secrets
	}
	setHeaders(req)
	if r.Body != "" {
		req.Header.Set("Content-Type", kind)
	}
	for name, value := range r.Headers {
		filled := fill(value, func(s string) string { return s })
		if strings.ContainsFunc(filled, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return nil, fmt.Errorf("request.headers.%s: the filled value contains a control character", name)
		}
		req.Header.Set(name, filled)
	}
	switch {
	case missing == secretRefresh:
		return nil, ErrNoRefreshToken
	case missing != "":
		return nil, fmt.Errorf("request.secrets.%s: has no value", missing)
	}
	return req, nil
}

func escapeJSON(text string) string {
	quoted, _ := json.Marshal(text) // a string can always be encoded
	return string(quoted[1 : len(quoted)-1])
}
