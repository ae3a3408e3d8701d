package access

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// clockLeeway is the accepted difference between the clocks of freshet and the issuer, for the
// claims "nbf" and "iat".
const clockLeeway = 30 * time.Second

// verifier verifies the JWTs of one issuer.
type verifier struct {
	*keySet
	config Config
}

func newVerifier(config Config, log *slog.Logger, readAt prometheus.Gauge) *verifier {
	set := &keySet{
		MemoryJWKSet: jwkset.NewMemoryStorage(), url: config.JWKSURL, log: log, now: time.Now,
		maxAge: config.MaxAge.SigningKeys, readAt: readAt,
		client: &http.Client{
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				if len(via) > 3 || via[0].URL.Scheme != "https" || r.URL.Scheme != "https" || !isJWKSURL(r.URL.String()) {
					return http.ErrUseLastResponse
				}
				return nil
			},
		},
	}
	return &verifier{keySet: set, config: config}
}

// key returns the function that selects the public key that verifies a token. A token without a key
// id (kid) is accepted only if there is exactly one key. With several keys, the token would not
// determine which of them must verify it.
func (i *verifier) key(ctx context.Context) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if _, critical := token.Header["crit"]; critical { // a token with header extensions is rejected, because freshet supports none (RFC 7515 §4.1.11)
			return nil, errors.New("the token has a crit header")
		}
		if !hasType(token.Header, i.config.Types...) {
			return nil, errors.New("the token's typ is not one of access.types")
		}
		var key jwkset.JWK
		var err error
		switch kid := token.Header["kid"].(type) {
		case nil:
			key, err = i.readOnlyKey(ctx)
		case string:
			key, err = i.KeyRead(ctx, kid)
		default:
			err = errors.New("the kid is not a string")
		}
		if err != nil {
			return nil, err
		}
		if alg := key.Marshal().ALG.String(); alg != "" && alg != token.Method.Alg() {
			return nil, fmt.Errorf("the signing key is for the algorithm %s, not for the algorithm of the token", alg)
		}
		return key.Key(), nil
	}
}

// hasType reports whether the header parameter "typ" of a token is one of the types. Case is
// ignored, and "application/" may be omitted (RFC 7515 §4.1.9). A missing typ counts as JWT (RFC
// 7519 §5.1).
func hasType(header map[string]any, types ...string) bool {
	typ, is := header["typ"].(string)
	if _, ok := header["typ"]; !ok {
		typ, is = plainJWT, true
	}
	const prefix = "application/"
	if len(typ) > len(prefix) && strings.EqualFold(typ[:len(prefix)], prefix) {
		typ = typ[len(prefix):]
	}
	return is && slices.ContainsFunc(types, func(accepted string) bool { return strings.EqualFold(accepted, typ) })
}

// Accepted values of a token's header parameter typ. Only at+jwt identifies an access token
// (RFC 9068 §2.1); ID tokens have the type JWT too.
const (
	accessJWT = "at+jwt"
	plainJWT  = "JWT"
)

// claims are the claims that freshet reads. RFC 8693 and RFC 9068 define the claim "scope" as one
// string; some issuers send a list in the claim "scp" instead.
type claims struct {
	jwt.RegisteredClaims
	scope string
	scp   scopesList
	// notAccessToken is true if the claims identify an ID, refresh or logout token.
	notAccessToken bool
}

// UnmarshalJSON reads claims by their exact names. encoding/json ignores case and would read
// SCOPE as scope. That is dangerous if an issuer lets its users choose the names of claims.
func (c *claims) UnmarshalJSON(text []byte) error {
	all, err := parseMembers(text)
	if err != nil {
		return err
	}
	for name, into := range map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "aud": &c.Audience, "exp": &c.ExpiresAt, "nbf": &c.NotBefore, "iat": &c.IssuedAt,
		"scope": &c.scope, "scp": &c.scp,
	} {
		if value, ok := all[name]; ok {
			if err := json.Unmarshal(value, into); err != nil {
				return err
			}
		}
	}
	c.notAccessToken = isNotAccessToken(all)
	return nil
}

// isNotAccessToken reports whether the claims show that a token is not an access token. It detects
// ID tokens (OpenID Connect Core §2, §3.1.3.6, §3.3.2.11) and security events such as logout tokens
// (RFC 8417 §2.2). Keycloak names the kind of a token in the claim typ, and Amazon Cognito names it
// in the claim token_use; isNotAccessToken detects every kind except an access token.
func isNotAccessToken(claims map[string]json.RawMessage) bool {
	for _, claim := range []string{"nonce", "at_hash", "c_hash", "events"} {
		if _, ok := claims[claim]; ok {
			return true
		}
	}
	for name, access := range map[string]string{"typ": "Bearer", "token_use": "access"} {
		var kind string
		if value, ok := claims[name]; ok && (json.Unmarshal(value, &kind) != nil || kind != access) {
			return true
		}
	}
	return false
}

// parseMembers returns the members of a JSON object. A duplicate name is an error: a proxy that
// checked the token may have read the first value, and freshet would read the second one.
func parseMembers(text []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.Join(err, errors.New("the claims are not a JSON object"))
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if _, duplicate := all[name]; duplicate {
			return nil, fmt.Errorf("the claim %.40q occurs twice", name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		all[name] = value
	}
	return all, nil
}

// scopesList unmarshals a list of strings or one string.
type scopesList []string

func (l *scopesList) UnmarshalJSON(text []byte) error {
	var single string
	if err := json.Unmarshal(text, &single); err == nil {
		*l = strings.Fields(single)
		return nil
	}
	return json.Unmarshal(text, (*[]string)(l))
}

// client verifies a token and returns its client.
func (i *verifier) client(ctx context.Context, token string, now time.Time) (Client, error) {
	if strings.Count(token, ".") != 2 {
		return Client{}, invalidToken() // a token without two dots is not a JWT; rejecting it needs no signing key
	}
	if !i.ready() {
		return Client{}, signingKeysUnavailable()
	}
	var c claims
	parsed, err := jwt.NewParser(
		jwt.WithValidMethods(i.config.Algorithms), jwt.WithIssuer(i.config.Issuer), jwt.WithAudience(i.config.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(clockLeeway), jwt.WithTimeFunc(func() time.Time { return now }),
	).ParseWithClaims(token, &c, i.key(ctx))
	switch {
	case errors.Is(err, errKeysUnavailable):
		return Client{}, signingKeysUnavailable()
	case onlyExpired(err):
		return Client{}, expiredToken()
	case err != nil:
		return Client{}, invalidToken()
	case !now.Before(c.ExpiresAt.Time): // the token has expired: clockLeeway does not apply to the claim "exp"
		return Client{}, expiredToken()
	case c.Subject == "" || c.notAccessToken && !hasType(parsed.Header, accessJWT):
		return Client{}, invalidToken()
	}
	client := Client{Name: "jwt:" + cleanName(c.Subject), Expires: c.ExpiresAt.Time}
	for _, s := range append(strings.Fields(c.scope), c.scp...) {
		scope, hasPrefix := strings.CutPrefix(s, i.config.ScopePrefix)
		if hasPrefix && Scope(scope).known() && !slices.Contains(client.Scopes, Scope(scope)) {
			client.Scopes = append(client.Scopes, Scope(scope))
		}
	}
	return client, nil
}

// onlyExpired reports whether expiry is the only error of a token. The parser checks the claims
// after the signature, so the signature of a token with this error is valid.
func onlyExpired(err error) bool {
	for _, other := range []error{
		jwt.ErrTokenMalformed, jwt.ErrTokenUnverifiable, jwt.ErrTokenSignatureInvalid, jwt.ErrTokenRequiredClaimMissing,
		jwt.ErrTokenInvalidAudience, jwt.ErrTokenInvalidIssuer, jwt.ErrTokenUsedBeforeIssued, jwt.ErrTokenNotValidYet,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return errors.Is(err, jwt.ErrTokenExpired)
}
