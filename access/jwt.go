package access

import (
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
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

// clockLeeway is by how much the clocks of the issuer and of this machine may
// differ where a token's beginning is judged.
const clockLeeway = 30 * time.Second

// issuer checks the JWTs of one issuer.
type issuer struct {
	*keySet
	keys   keyfunc.Keyfunc
	config Config
}

func newIssuer(config Config, log *slog.Logger) (*issuer, error) {
	set := &keySet{
		MemoryJWKSet: jwkset.NewMemoryStorage(), url: config.JWKSURL, log: log, now: time.Now,
		client: &http.Client{
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			CheckRedirect: func(r *http.Request, via []*http.Request) error {
				if len(via) > 3 || !fetchable(r.URL.String()) {
					return http.ErrUseLastResponse
				}
				return nil
			},
		},
	}
	keys, err := keyfunc.New(keyfunc.Options{Storage: set})
	if err != nil {
		return nil, fmt.Errorf("access.jwksURL: %w", err)
	}
	return &issuer{keySet: set, keys: keys, config: config}, nil
}

// claims are what is read of a token. RFC 8693 and 9068 have scope as one text,
// some issuers have scp as a list.
type claims struct {
	jwt.RegisteredClaims
	Scope string     `json:"scope"`
	Scp   scopesList `json:"scp"`
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
func (i *issuer) client(ctx context.Context, token string, now time.Time) (Client, error) {
	if strings.Count(token, ".") != 2 {
		return Client{}, invalid() // no JWT, whatever the keys are
	}
	if !i.ready(ctx) {
		return Client{}, noKeys()
	}
	var c claims
	_, err := jwt.NewParser(
		jwt.WithValidMethods(i.config.Algorithms), jwt.WithIssuer(i.config.Issuer), jwt.WithAudience(i.config.Audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(clockLeeway), jwt.WithTimeFunc(func() time.Time { return now }),
	).ParseWithClaims(token, &c, i.keys.KeyfuncCtx(ctx))
	switch {
	case onlyExpired(err):
		return Client{}, expired()
	case err != nil:
		return Client{}, invalid()
	case !now.Before(c.ExpiresAt.Time): // the leeway is for a token's beginning
		return Client{}, expired()
	case c.Subject == "":
		return Client{}, invalid()
	}
	client := Client{Name: "jwt:" + named(c.Subject), Expires: c.ExpiresAt.Time}
	for _, s := range append(strings.Fields(c.Scope), c.Scp...) {
		if slices.Contains(scopes, Scope(s)) && !slices.Contains(client.Scopes, Scope(s)) {
			client.Scopes = append(client.Scopes, Scope(s))
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
