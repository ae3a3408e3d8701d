package access

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config has the settings of authentication and of the limits per client.
type Config struct {
	// Require says when authentication is required. With auto, it is required if a credential is
	// configured, if an API key was ever created, or if the service listens on an address that other
	// machines can reach.
	Require Require `yaml:"require"`
	// AdminTokenFile is the path of a file with a token that has the scope admin, for creating the first
	// API key and for emergencies. The token must have at least 32 characters. The file is read again
	// when it changes; removing it revokes the token.
	AdminTokenFile string `yaml:"adminTokenFile"`
	// CronSecretFile is the path of a file with the secret that the header X-Cron-Secret of a
	// maintenance request must have, for schedulers such as pg_cron. It has the same form as the admin
	// token and is read again when it changes. Empty: maintenance requests need the scope admin.
	CronSecretFile string `yaml:"cronSecretFile"`
	// JWKSURL is the URL of the public keys (a JWK set) that verify JWTs; empty: no JWTs are accepted.
	JWKSURL string `yaml:"jwksURL"`
	// Issuer is the claim iss that a JWT must have. It is required with jwksURL.
	Issuer string `yaml:"issuer"`
	// Audience is the claim aud that a JWT must have. It is required with jwksURL.
	Audience string `yaml:"audience"`
	// Algorithms are the accepted signature algorithms of JWTs. Only asymmetric ones are allowed.
	Algorithms []string `yaml:"algorithms" enum:"RS256,RS384,RS512,PS256,PS384,PS512,ES256,ES384,ES512,EdDSA"`
	// Types are the accepted values of the header parameter "typ" of a JWT. RFC 9068 defines at+jwt for
	// access tokens. Many issuers send JWT, or no typ at all, which counts as JWT. ID, refresh and
	// logout tokens can have the type JWT too. They are rejected if their claims show their kind.
	Types []string `yaml:"types"`
	// ScopePrefix is the prefix of freshet's scopes in a JWT, such as "freshet:" or
	// "https://freshet.example/". Scopes without the prefix are ignored. Set it if the issuer also
	// issues tokens for other services; otherwise their scope "admin" would be valid for freshet.
	// The scopes of API keys have no prefix.
	ScopePrefix string `yaml:"scopePrefix"`
	// Hosts are the accepted values of the header Host, without port, while authentication is off.
	// Loopback names are always accepted; * accepts any host.
	Hosts []string `yaml:"hosts"`
	// AllowedOrigins are the web origins whose pages may call the service (CORS), such as
	// https://app.example.
	AllowedOrigins []string `yaml:"allowedOrigins"`
	// TrustedProxies are the networks of proxies whose header X-Forwarded-For is trusted, such as
	// 10.0.0.0/8.
	TrustedProxies []string `yaml:"trustedProxies"`
	// ClientHeader is the name of the header in which a key or token with the scope delegate names
	// the client on whose behalf it calls; empty: there is no such header. It is ignored in the
	// requests of clients without that scope.
	ClientHeader string `yaml:"clientHeader"`
	MaxAge       MaxAge `yaml:"maxAge"`
	Limits       Limits `yaml:"limits"`
}

// MaxAge holds the maximum ages of the cached API keys and signing keys while they can't be read
// again. If their last read was longer ago, requests with these keys get status 503. So a
// revocation takes effect within this time, even during an outage.
type MaxAge struct {
	// APIKeys is the maximum age of the cached API keys while the database is unavailable.
	APIKeys time.Duration `yaml:"apiKeys"`
	// AdminKeys is the maximum age of the cached API keys with the scope admin. It must not be longer
	// than apiKeys.
	AdminKeys time.Duration `yaml:"adminKeys"`
	// SigningKeys is the maximum age of the cached public keys while jwksURL is unavailable.
	SigningKeys time.Duration `yaml:"signingKeys"`
}

func (m MaxAge) check() error {
	var errs []error
	for _, one := range []struct {
		name       string
		value, min time.Duration
	}{{"apiKeys", m.APIKeys, time.Minute}, {"adminKeys", m.AdminKeys, time.Minute}, {"signingKeys", m.SigningKeys, 2 * fetchInterval}} {
		if one.value < one.min {
			errs = append(errs, fmt.Errorf("maxAge.%s: %v must be at least %v, or one failed read would reject every key", one.name, one.value, one.min))
		}
	}
	if m.AdminKeys > m.APIKeys {
		errs = append(errs, fmt.Errorf("maxAge.adminKeys: %v must not be longer than apiKeys, %v", m.AdminKeys, m.APIKeys))
	}
	return errors.Join(errs...)
}

// Require says when authentication is required.
type Require string

// The values of Require.
const (
	Auto   Require = "auto"
	Always Require = "always"
	Never  Require = "never"
)

// Limits are the limits of one client. The limits Outstanding and NewKeys apply per source, to all
// processes together. The other limits apply in each process separately, unless Shared is set.
type Limits struct {
	// Requests is the maximum rate of requests, as in 100/s, 2000/m or 50000/h; 0: no limit. A read
	// counts as 1, and so does each further key of a batch. In addition, each 64 KiB of a document that
	// must be decompressed counts as 1, and each 16 KiB of a document that must be compressed.
	Requests Rate `yaml:"requests"`
	// Shared makes the limit of requests apply to all processes together. Each counted request then
	// waits for one Redis call. While Redis does not answer, the limit applies in each process separately.
	Shared bool `yaml:"shared"`
	// Waiting is the maximum number of requests that wait or stream at the same time; 0: no limit.
	Waiting int `yaml:"waiting"`
	// Outstanding limits the HIGH update requests of one client that have not ended. The maximum is
	// the number of calls that the source's quota allows in this time: 3s and a quota of 100/s give
	// 300 calls. All active clients share these calls. 0s: no limit.
	Outstanding time.Duration `yaml:"outstanding"`
	// NewKeys limits the rate of requests for entities without a snapshot, as in 10/s; 0: no limit. With
	// auto it is a quarter of the HIGH rate that the source's quota allows.
	NewKeys Rate `yaml:"newKeys"`
}

// AutoRate is a rate that is derived from the quota of the source.
const AutoRate Rate = "auto"

// maxOutstanding is the maximum of Limits.Outstanding.
const maxOutstanding = time.Minute

// Rate is a number of calls per second, minute or hour, as in 100/s; empty or 0: no limit. That
// number of calls may also be made at once: with 100/s, a burst of 100 calls.
type Rate string

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// Parse returns the number of calls and the length of the window. The number is 0 if there is no
// limit, and for AutoRate.
func (r Rate) Parse() (calls int, window time.Duration) {
	calls, window, _ = r.parse()
	return calls, window
}

// parse returns the number of calls and the length of the window, or an error if the rate is
// invalid. The number is 0 if there is no limit.
func (r Rate) parse() (calls int, window time.Duration, err error) {
	if r == "" || r == "0" {
		return 0, 0, nil
	}
	number, unit, _ := strings.Cut(string(r), "/")
	calls, err = strconv.Atoi(number)
	window = rateUnits[unit]
	if err != nil || calls < 1 || calls > math.MaxInt32 || window == 0 {
		return 0, 0, fmt.Errorf("%q must be a whole number per second, minute or hour, as in 100/s or 2000/m, or 0 for no limit", string(r))
	}
	return calls, window, nil
}

// DefaultConfig returns the default settings.
func DefaultConfig() Config {
	return Config{
		Require:    Auto,
		Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"},
		Types:      []string{accessJWT, plainJWT},
		MaxAge:     MaxAge{APIKeys: 24 * time.Hour, AdminKeys: 5 * time.Minute, SigningKeys: 24 * time.Hour},
		Limits:     Limits{Requests: "20000/s", Waiting: 1000, Outstanding: 2 * time.Second, NewKeys: AutoRate},
	}
}

var asymmetric = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// Check returns all errors that can be found without reading files or calling other services.
// Each error begins with the path of the wrong setting, relative to "access".
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]Require{Auto, Always, Never}, c.Require) {
		fail("require: %q must be auto, always or never", c.Require)
	}
	switch {
	case c.JWKSURL == "" && (c.Issuer != "" || c.Audience != ""):
		fail("jwksURL: issuer and audience need the URL of the keys that sign tokens")
	case c.JWKSURL != "":
		if !isJWKSURL(c.JWKSURL) { // the error does not show the URL, which may contain a password
			fail("jwksURL: must be https://host/path without user and password; http is allowed only for loopback, because an attacker who can change the keys can forge tokens")
		}
		if c.Issuer == "" {
			fail("issuer: required with jwksURL; set it to the iss of the tokens")
		}
		if c.Audience == "" {
			fail("audience: required with jwksURL; set it to the aud of the tokens for this service")
		}
		if len(c.Types) == 0 {
			fail("types: name at least one, as in %s (RFC 9068) or %s", accessJWT, plainJWT)
		}
		if len(c.Algorithms) == 0 {
			fail("algorithms: name at least one of %s", strings.Join(asymmetric, ", "))
		}
	}
	for i, a := range c.Algorithms {
		switch {
		case slices.Contains(asymmetric, a):
		case strings.HasPrefix(a, "HS"):
			fail("algorithms[%d]: %s is symmetric: a public key could be used as its secret to forge tokens; use %s", i, a, strings.Join(asymmetric, ", "))
		case strings.EqualFold(a, "none"):
			fail("algorithms[%d]: none means unsigned tokens, which anyone can forge; use %s", i, strings.Join(asymmetric, ", "))
		default:
			fail("algorithms[%d]: %q must be one of %s", i, a, strings.Join(asymmetric, ", "))
		}
	}
	for i, typ := range c.Types {
		if !tokenType.MatchString(typ) {
			fail("types[%d]: %q must be the typ of a token without application/, as in %s or %s", i, typ, accessJWT, plainJWT)
		}
	}
	if strings.ContainsFunc(c.ScopePrefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		fail("scopePrefix: %q must be printable ASCII without blanks, quotes and backslashes, as a scope is (RFC 6749 §3.3)", c.ScopePrefix)
	}
	for i, host := range c.Hosts {
		if host != anyHost && !isHost(host) {
			fail("hosts[%d]: %q must be a name or address in lower case without scheme and port, as in freshet.internal, or * for any", i, host)
		}
	}
	for i, origin := range c.AllowedOrigins {
		if origin == "*" {
			fail("allowedOrigins[%d]: * would allow pages of any site to read snapshots through a visitor's browser; list the origins, as in https://app.example", i)
		} else if !isOrigin(origin) {
			fail("allowedOrigins[%d]: %q must be scheme://host or scheme://host:port in lower case, as in https://app.example", i, origin)
		}
	}
	for i, network := range c.TrustedProxies {
		if _, err := netip.ParsePrefix(network); err != nil {
			fail("trustedProxies[%d]: %q must be a network, as in 10.0.0.0/8 or 10.0.0.7/32", i, network)
		}
	}
	if err := c.MaxAge.check(); err != nil {
		errs = append(errs, err)
	}
	if err := checkClientHeader(c.ClientHeader); err != nil {
		errs = append(errs, err)
	}
	if calls, _, err := c.Limits.Requests.parse(); err != nil {
		fail("limits.requests: %w", err)
	} else if calls == 0 && c.Limits.Shared {
		fail("limits.shared: there is no limit of requests to share; set limits.requests, as in 100/s, or remove shared")
	}
	if _, _, err := c.Limits.NewKeys.parse(); err != nil && c.Limits.NewKeys != AutoRate {
		fail("limits.newKeys: %w, or auto for a quarter of the source's narrowest window", err)
	}
	if d := c.Limits.Outstanding; d < 0 || d > maxOutstanding {
		fail("limits.outstanding: %v must be from 0 (no limit) to %v: it is how long the outstanding requests of one client may occupy the source", d, maxOutstanding)
	}
	if n := c.Limits.Waiting; n < 0 {
		fail("limits.waiting: %d must not be negative; 0 means no limit", n)
	}
	return errors.Join(errs...)
}

func isJWKSURL(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return false
	}
	return u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Host)
}

func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && text == u.Scheme+"://"+u.Host && originHost.MatchString(u.Host)
}

var (
	// originHost matches the host and port of a web origin. It allows no wildcard characters,
	// because a CORS library may treat them as a pattern.
	originHost = regexp.MustCompile(`^([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?$`)
	// tokenType matches the type of a token: the subtype of a media type (RFC 6838 §4.2).
	tokenType = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z!#$&^_.+-]{0,126}$`)
	// hostName matches a host name. It allows underscores, because names of containers have them.
	hostName = regexp.MustCompile(`^[a-z0-9._-]+$`)
)

// anyHost is the value in Config.Hosts that accepts every host name.
const anyHost = "*"

func isHost(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || hostName.MatchString(text)
}

// hostOf returns the host of an address, which is "host" or "host:port".
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	if inner, bracketed := strings.CutPrefix(address, "["); bracketed {
		return strings.TrimSuffix(inner, "]")
	}
	return address
}

// Loopback reports whether an address, "host" or "host:port", is reachable only from this
// machine.
func Loopback(address string) bool {
	host := hostOf(address)
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// requiresAuth reports whether a service that listens on this address requires authentication. The
// argument `created` means that an API key was ever created. The key may be expired or revoked now:
// the expiry of the last key must not open the service to everyone. requiresAuth returns an error
// if the service would be open by mistake, or if every request would be rejected.
func (c Config) requiresAuth(listen string, created bool) (bool, error) {
	hasCredentials := c.JWKSURL != "" || c.AdminTokenFile != "" || created
	loopback := Loopback(listen)
	switch {
	case c.Require == Never || c.Require == Auto && loopback && !hasCredentials:
		return false, nil
	case hasCredentials:
		return true, nil
	}
	const hint = "set access.adminTokenFile or access.jwksURL, or create a key first with `freshet keys create` while the service listens on loopback"
	if loopback {
		return false, fmt.Errorf("access.require: always, but there are no credentials, so every request would be rejected: %s", hint)
	}
	return false, fmt.Errorf("access: the service would listen on %s, which is not loopback, without any credentials: %s; to allow everyone to read and administer, set access.require: never", listen, hint)
}
