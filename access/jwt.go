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

// clockLeeway is by how much the clocks of the issuer and of this machine may
// differ where a token's beginning is judged.
const clockLeeway = 30 * time.Second

// verifier checks the JWTs of one issuer.
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
				if len(via) > 3 || via[0].URL.Scheme != "https" || r.URL.Scheme != "https" || !fetchable(r.URL.String()) {
					return http.ErrUseLastResponse
				}
				return nil
			},
		},
	}
	return &verifier{keySet: set, config: config}
}

// key returns the public key that a token is to be signed by. One that names none is
// judged by the only one there is: with several, whoever makes a token would choose.
func (i *verifier) key(ctx context.Context) jwt.Keyfunc {
	return func(token *jwt.Token) (any, error) {
		if _, critical := token.Header["crit"]; critical { // freshet knows no extension (RFC 7515 §4.1.11)
			return nil, errors.New("the token has a crit header")
		}
		if !ofType(token.Header, i.config.Types...) {
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
			err = errors.New("the kid is no text")
		}
		if err != nil {
			return nil, err
		}
		if alg := key.Marshal().ALG.String(); alg != "" && alg != token.Method.Alg() {
			return nil, fmt.Errorf("the key is for %s", alg)
		}
		return key.Key(), nil
	}
}

// ofType reports whether a token's header typ is one of the types. RFC 7515 §4.1.9: the
// case does not count, and "application/" may be left out. A token without a typ counts
// as JWT (RFC 7519 §5.1).
func ofType(header map[string]any, types ...string) bool {
	typ, is := header["typ"].(string)
	if _, there := header["typ"]; !there {
		typ, is = plainJWT, true
	}
	const prefix = "application/"
	if len(typ) > len(prefix) && strings.EqualFold(typ[:len(prefix)], prefix) {
		typ = typ[len(prefix):]
	}
	return is && slices.ContainsFunc(types, func(accepted string) bool { return strings.EqualFold(accepted, typ) })
}

// The types of tokens that are access tokens, by the header typ. Only the first one says
// so by itself (RFC 9068 §2.1): ID tokens are of the type JWT too.
const (
	accessJWT = "at+jwt"
	plainJWT  = "JWT"
)

// claims are what is read of a token. RFC 8693 and 9068 have scope as one text,
// some issuers have scp as a list.
type claims struct {
	jwt.RegisteredClaims
	scope string
	scp   scopesList
	// notAccessToken: the claims show an ID token, a refresh token or a logout token.
	notAccessToken bool
}

// UnmarshalJSON reads members by their exact names. encoding/json would take SCOPE,
// and even a long s, for the scope: an issuer may let its users name claims so.
func (c *claims) UnmarshalJSON(text []byte) error {
	all, err := members(text)
	if err != nil {
		return err
	}
	for name, into := range map[string]any{
		"iss": &c.Issuer, "sub": &c.Subject, "aud": &c.Audience, "exp": &c.ExpiresAt, "nbf": &c.NotBefore, "iat": &c.IssuedAt,
		"scope": &c.scope, "scp": &c.scp,
	} {
		if value, there := all[name]; there {
			if err := json.Unmarshal(value, into); err != nil {
				return err
			}
		}
	}
	c.notAccessToken = isNotAccessToken(all)
	return nil
}

// isNotAccessToken reports whether the claims show that a token is no access token. It knows
// the claims of ID tokens (OpenID Connect Core §2, §3.1.3.6, §3.3.2.11) and of security
// events such as logout tokens (RFC 8417 §2.2), and the claims in which Keycloak (typ) and
// Amazon Cognito (token_use) name the kind of a token.
func isNotAccessToken(claims map[string]json.RawMessage) bool {
	for _, mark := range []string{"nonce", "at_hash", "c_hash", "events"} {
		if _, there := claims[mark]; there {
			return true
		}
	}
	for name, access := range map[string]string{"typ": "Bearer", "token_use": "access"} {
		var kind string
		if value, there := claims[name]; there && (json.Unmarshal(value, &kind) != nil || kind != access) {
			return true
		}
	}
	return false
}

// members returns an object's members, of which none may be there twice: who has
// checked the token before may have taken the other.
func members(text []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, errors.Join(err, errors.New("the claims are no object"))
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%.40q is there twice", name)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		all[name] = value
	}
	return all, nil
}

// scopesList reads a list, or one text.
type scopesList []string

func (l *scopesList) UnmarshalJSON(text []byte) error {
	var one string
	if err := json.Unmarshal(text, &one); err == nil {
		*l = strings.Fields(one)
		return nil
	}
	return json.Unmarshal(text, (*[]string)(l))
}

// client returns who shows this token at this time.
func (i *verifier) client(ctx context.Context, token string, now time.Time) (Client, error) {
	if strings.Count(token, ".") != 2 {
		return Client{}, invalidToken() // no JWT, whatever the keys are
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
	case !now.Before(c.ExpiresAt.Time): // the leeway is for a token's beginning
		return Client{}, expiredToken()
	case c.Subject == "" || c.notAccessToken && !ofType(parsed.Header, accessJWT):
		return Client{}, invalidToken()
	}
	client := Client{Name: "jwt:" + cleanName(c.Subject), Expires: c.ExpiresAt.Time}
	for _, s := range append(strings.Fields(c.scope), c.scp...) {
		scope, ours := strings.CutPrefix(s, i.config.ScopePrefix)
		if ours && Scope(scope).known() && !slices.Contains(client.Scopes, Scope(scope)) {
			client.Scopes = append(client.Scopes, Scope(scope))
		}
	}
	return client, nil
}

// onlyExpired reports whether nothing else is wrong with a token. The parser
// judges claims only after the signature.
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
