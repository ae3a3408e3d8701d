// Package token requests tokens for credentials that renew themselves: it writes the request of a
// grant, signs JWTs, and reads the answer of the token endpoint. It stores nothing.
//
//	grant              request                                         needs
//	client-credentials RFC 6749 §4.4                                   client id and secret
//	refresh-token      RFC 6749 §6; the answer may rotate the token    client id, first refresh token
//	jwt-bearer         RFC 7523 §2.1, or a JWT as the bearer token     private key
//	login              any request of the configuration                secrets of the configuration
package token

import (
	"cmp"
	"time"
)

// The ways to get a token (OAuth grants, or a login).
const (
	ClientCredentials = "client-credentials"
	RefreshToken      = "refresh-token"
	JWTBearer         = "jwt-bearer"
	Login             = "login"
)

// Config describes how the token of a credential is requested.
type Config struct {
	// Preset fills the settings of a well-known token endpoint. Other settings override it.
	Preset string `yaml:"preset,omitempty" enum:"reddit,hubspot,jira,github-app,google"`
	// Grant is the kind of the request: an OAuth2 grant, or login for any other request.
	Grant string `yaml:"grant,omitempty" enum:"client-credentials,refresh-token,jwt-bearer,login"`
	// TokenURL is the URL of the token endpoint. Redirects are not followed.
	TokenURL string `yaml:"tokenURL,omitempty"`
	// ClientID identifies the client at the token endpoint.
	ClientID string `yaml:"clientId,omitempty"`
	// ClientIDEnv is the name of the environment variable with the client id.
	ClientIDEnv string `yaml:"clientIdEnv,omitempty"`
	// ClientSecretEnv is the name of the environment variable with the client secret.
	ClientSecretEnv string `yaml:"clientSecretEnv,omitempty"`
	// ClientSecretFile is the path of a file with the client secret. It is read for each renewal.
	ClientSecretFile string `yaml:"clientSecretFile,omitempty"`
	// ClientAuth is where the client id and secret are sent: in the form (body), or in the header
	// Authorization (basic). Empty means body.
	ClientAuth string `yaml:"clientAuth,omitempty" enum:"body,basic"`
	// Scopes are the requested scopes.
	Scopes []string `yaml:"scopes,omitempty"`
	// Params are additional values of the token request's form, by name, such as audience.
	Params map[string]string `yaml:"params,omitempty"`
	// RefreshTokenEnv is the name of the environment variable with the first refresh token.
	RefreshTokenEnv string `yaml:"refreshTokenEnv,omitempty"`
	// RefreshTokenFile is the path of a file with the first refresh token. Later refresh tokens are
	// kept in the database. `freshet credentials authorize` also obtains a refresh token.
	RefreshTokenFile string `yaml:"refreshTokenFile,omitempty"`
	// Consent configures `freshet credentials authorize` and `revoke`.
	Consent Consent `yaml:"consent,omitempty"`
	// JWT configures the signed token of the grant jwt-bearer.
	JWT *JWT `yaml:"jwt,omitempty"`
	// Request is the HTTP request that logs in and returns a token. It is allowed only with the
	// grant login.
	Request *Request `yaml:"request,omitempty"`
	// Value is the place of the token in the response: body:PATH, header:NAME or cookie:NAME. Empty
	// means body:access_token.
	Value string `yaml:"value,omitempty"`
	// Expires is the place in the response that says when the token expires, as seconds or as a time.
	// cookie:NAME reads when the cookie expires. Empty means body:expires_in.
	Expires string `yaml:"expires,omitempty"`
	// Refresh is the place of the next refresh token in the response. If a response has no refresh
	// token, the previous refresh token stays in use. Empty means body:refresh_token.
	Refresh string `yaml:"refresh,omitempty"`
	// RenewBefore is the time before the expiry of a token at which the token is renewed; 0s means 5m.
	// The maximum is half of the token's lifetime.
	RenewBefore time.Duration `yaml:"renewBefore,omitempty"`
	// Lifetime is the lifetime of a token if the response has no readable lifetime; 0s means 1h.
	Lifetime time.Duration `yaml:"lifetime,omitempty"`
}

// Consent configures how a person allows access, with the authorization code flow and PKCE (RFC 7636).
type Consent struct {
	// AuthorizeURL is the page on which the person agrees.
	AuthorizeURL string `yaml:"authorizeURL,omitempty"`
	// RedirectURL is the registered address on loopback, such as http://127.0.0.1:8765/callback. The
	// command listens on it. Empty means a free port.
	RedirectURL string `yaml:"redirectURL,omitempty"`
	// RevokeURL is the URL of the endpoint that revokes tokens (RFC 7009).
	RevokeURL string `yaml:"revokeURL,omitempty"`
	// Params are further query parameters of authorizeURL, by name.
	Params map[string]string `yaml:"params,omitempty"`
}

// JWT describes the JSON Web Token that the grant jwt-bearer signs.
type JWT struct {
	// KeyFile is the path of the private key (PEM): RSA for RS256, P-256 for ES256.
	KeyFile string `yaml:"keyFile,omitempty"`
	// KeyEnv is the name of the environment variable with the private key.
	KeyEnv string `yaml:"keyEnv,omitempty"`
	// KeyID is the value of the header kid.
	KeyID string `yaml:"keyId,omitempty"`
	// Issuer is the claim iss, such as a service account or the id of an app; empty means the client
	// id.
	Issuer string `yaml:"issuer,omitempty"`
	// Subject is the claim sub, such as the user for whom the service account acts.
	Subject string `yaml:"subject,omitempty"`
	// Audience is the claim aud; empty means tokenURL.
	Audience string `yaml:"audience,omitempty"`
	// Lifetime is the time between the claims iat and exp, at most 1h; 0s means 9m.
	Lifetime time.Duration `yaml:"lifetime,omitempty"`
	// SendIn is where the JWT is sent: as the form's assertion (form), or as the bearer token of the
	// header Authorization (header). Empty means form.
	SendIn string `yaml:"sendIn,omitempty" enum:"form,header"`
}

// Request configures the request of the grant login. URL, header values and body may contain
// {placeholders}: the names of secrets, and {refresh} for the last refresh token.
type Request struct {
	// URL is the URL to which the login request is sent.
	URL string `yaml:"url"`
	// Method is the HTTP method; empty means POST.
	Method string `yaml:"method,omitempty" enum:"GET,POST"`
	// Headers are the values of headers of the login request, by name.
	Headers map[string]string `yaml:"headers,omitempty"`
	// ContentType is the content type of the body; empty means application/json. Placeholders are
	// escaped for JSON or for a form.
	ContentType string `yaml:"contentType,omitempty"`
	// Body is the text that is sent as the body of the login request.
	Body string `yaml:"body,omitempty"`
	// Secrets are the values of the placeholders, by name. A secret with the name refresh is the first
	// refresh token.
	Secrets map[string]Secret `yaml:"secrets,omitempty"`
}

// Secret says where a secret is read from: an environment variable or a file.
type Secret struct {
	// Env is the name of the environment variable with the secret.
	Env string `yaml:"env,omitempty"`
	// File is the path of a file with the secret. It is read for each renewal.
	File string `yaml:"file,omitempty"`
}

// The names of the secrets that the settings of a grant define.
const (
	secretClientID     = "clientId"
	secretClientSecret = "clientSecret"
	secretRefresh      = "refresh"
	secretKey          = "key"
)

// Secrets returns the places of all secrets that the grant uses, by name.
func (c Config) Secrets() map[string]Secret {
	all := map[string]Secret{}
	add := func(name, env, file string) {
		if env != "" || file != "" {
			all[name] = Secret{env, file}
		}
	}
	add(secretClientID, c.ClientIDEnv, "")
	add(secretClientSecret, c.ClientSecretEnv, c.ClientSecretFile)
	add(secretRefresh, c.RefreshTokenEnv, c.RefreshTokenFile)
	if c.JWT != nil {
		add(secretKey, c.JWT.KeyEnv, c.JWT.KeyFile)
	}
	if c.Request != nil {
		for name, secret := range c.Request.Secrets {
			add(name, secret.Env, secret.File)
		}
	}
	return all
}

// Optional reports whether a token can be requested without the secret: the stored refresh token
// replaces the first one.
func (c Config) Optional(secret string) bool { return secret == secretRefresh }

const (
	defaultRenewBefore = 5 * time.Minute
	defaultLifetime    = time.Hour
	defaultJWTLifetime = 9 * time.Minute
	// minLifetime and maxLifetime bound the lifetime of a token.
	minLifetime, maxLifetime = time.Minute, 366 * 24 * time.Hour
)

// RenewIn returns the time from the issue of a token with this lifetime to its renewal.
func (c Config) RenewIn(lifetime time.Duration) time.Duration {
	return lifetime - min(cmp.Or(c.RenewBefore, defaultRenewBefore), lifetime/2)
}
