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

// Config says who is asked who they are, and by what they show it.
type Config struct {
	// Require is always, never or auto: if there is anything to show, if a key was
	// ever made, or if the service listens beyond loopback.
	Require Require `yaml:"require"`
	// AdminTokenFile holds a token with every scope, for the first key and for a
	// lockout: at least 32 characters, read again when it changes and taken back
	// when it is removed.
	AdminTokenFile string `yaml:"adminTokenFile"`
	// JWKSURL is where the keys are that sign JWTs; Issuer and Audience must be
	// those of a token, and Algorithms are the only ones it may be signed by.
	JWKSURL    string   `yaml:"jwksURL"`
	Issuer     string   `yaml:"issuer"`
	Audience   string   `yaml:"audience"`
	Algorithms []string `yaml:"algorithms"`
	// Types are the accepted types of tokens, by the header typ. RFC 9068 calls an access
	// token at+jwt; many issuers write JWT or nothing, which counts as JWT. Of those, ID,
	// refresh and logout tokens are refused where their claims show what they are.
	Types []string `yaml:"types"`
	// ScopePrefix is the required beginning of a token's scopes, such as freshet: or
	// https://freshet.example/. Scopes without it are ignored. An issuer that serves
	// other services too needs one, or its scope admin is freshet's. API keys have none.
	ScopePrefix string `yaml:"scopePrefix"`
	// Hosts are the names, without port, that a service which asks nobody answers
	// to besides those of loopback; * is any.
	Hosts []string `yaml:"hosts"`
	// AllowedOrigins are those of pages that may call from a browser (CORS).
	AllowedOrigins []string `yaml:"allowedOrigins"`
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []string `yaml:"trustedProxies"`
	// ClientHeader is the header in which a key or token with the scope delegate names the
	// client on whose behalf it calls; empty: none. Of other clients it is ignored.
	ClientHeader string `yaml:"clientHeader"`
	MaxAge       MaxAge `yaml:"maxAge"`
	Limits       Limits `yaml:"limits"`
}

// MaxAge bounds for how long keys in memory stay valid while they can't be read again, and
// so for how long a revocation may go unnoticed. Older keys are answered 503.
type MaxAge struct {
	// APIKeys is the bound for API keys, AdminKeys the one for API keys with the scope
	// admin, while the database does not answer.
	APIKeys   time.Duration `yaml:"apiKeys"`
	AdminKeys time.Duration `yaml:"adminKeys"`
	// SigningKeys is the bound for the keys of JWKSURL, while it does not answer.
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

// Require says whether anybody is asked who they are.
type Require string

// What Require may be.
const (
	Auto   Require = "auto"
	Always Require = "always"
	Never  Require = "never"
)

// Limits bound what one client may ask: Outstanding and NewKeys of all processes
// together and for each source, the others of one process.
type Limits struct {
	// Requests are reads: one counts 1, each further key of a batch 1, and a document
	// that must be unpacked or compressed for the response 1 for each 64 KiB or 16 KiB.
	Requests Rate `yaml:"requests"`
	Waiting  int  `yaml:"waiting"` // requests that wait or stream; 0: any number
	// Outstanding is the time of the source's HIGH rate that the requests of one client may
	// take up while no other client is active; 0: any.
	Outstanding time.Duration `yaml:"outstanding"`
	// NewKeys are entities of which nothing is stored. auto: a quarter of what the narrowest
	// window of the source's quota admits.
	NewKeys Rate `yaml:"newKeys"`
}

// AutoRate is a rate that follows from the quota of the source.
const AutoRate Rate = "auto"

// maxOutstanding is the longest Limits.Outstanding.
const maxOutstanding = time.Minute

// Rate is a number of calls in a second, minute or hour, as in 100/s; empty or 0:
// any number. So many may also come at once.
type Rate string

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// Parse returns how many may come in which time; 0 for any number, and for AutoRate.
func (r Rate) Parse() (calls int, window time.Duration) {
	calls, window, _ = r.parse()
	return calls, window
}

// parse returns how many may come in which time; 0 for any number.
func (r Rate) parse() (calls int, window time.Duration, err error) {
	if r == "" || r == "0" {
		return 0, 0, nil
	}
	number, unit, _ := strings.Cut(string(r), "/")
	calls, err = strconv.Atoi(number)
	window = rateUnits[unit]
	if err != nil || calls < 1 || calls > math.MaxInt32 || window == 0 {
		return 0, 0, fmt.Errorf("%q must be a whole number in a second, minute or hour, as in 100/s or 2000/m, or 0 for any number", string(r))
	}
	return calls, window, nil
}

// DefaultConfig returns the settings before any file.
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

// Check returns all mistakes that can be seen without reading or asking anything.
// Each begins with the setting's path below access.
func (c Config) Check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains([]Require{Auto, Always, Never}, c.Require) {
		fail("require: %q must be auto, always or never", c.Require)
	}
	switch {
	case c.JWKSURL == "" && (c.Issuer != "" || c.Audience != ""):
		fail("jwksURL: issuer and audience are of tokens, and nobody could check one; say where the keys are that sign them")
	case c.JWKSURL != "":
		if !fetchable(c.JWKSURL) { // not the value: it may hold a password
			fail("jwksURL: write it as https://host/path without user and password; http is for loopback alone, since whoever can change the keys can make tokens")
		}
		if c.Issuer == "" {
			fail("issuer: a token must name who made it; write its iss")
		}
		if c.Audience == "" {
			fail("audience: a token must be meant for this service; write its aud")
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
			fail("algorithms[%d]: %s is symmetric: whoever can check such a token can make one, and a public key must never be taken for its secret; use %s", i, a, strings.Join(asymmetric, ", "))
		case strings.EqualFold(a, "none"):
			fail("algorithms[%d]: none signs nothing, so that anybody could make a token; use %s", i, strings.Join(asymmetric, ", "))
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
			fail("allowedOrigins[%d]: * would let the pages of any site read what a browser here can reach, by its address alone where nobody is asked; name the origins, as in https://app.example", i)
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
	if _, _, err := c.Limits.Requests.parse(); err != nil {
		fail("limits.requests: %w", err)
	}
	if _, _, err := c.Limits.NewKeys.parse(); err != nil && c.Limits.NewKeys != AutoRate {
		fail("limits.newKeys: %w, or auto for a quarter of the source's narrowest window", err)
	}
	if d := c.Limits.Outstanding; d < 0 || d > maxOutstanding {
		fail("limits.outstanding: %v must be from 0, which is any number, to %v: it is the time that the requests of one client may take the source", d, maxOutstanding)
	}
	if n := c.Limits.Waiting; n < 0 {
		fail("limits.waiting: %d must not be negative; 0 is any number", n)
	}
	return errors.Join(errs...)
}

func fetchable(text string) bool {
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
	// originHost has no sign that would be read as a pattern where it is compared.
	originHost = regexp.MustCompile(`^([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]+)?$`)
	// tokenType is a subtype of a media type (RFC 6838 §4.2).
	tokenType = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z!#$&^_.+-]{0,126}$`)
	// hostName takes underscores too: names of containers have them.
	hostName = regexp.MustCompile(`^[a-z0-9._-]+$`)
)

// anyHost among the hosts is every name.
const anyHost = "*"

func isHost(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil || hostName.MatchString(text)
}

// hostOf returns the host of host or host:port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	if inner, bracketed := strings.CutPrefix(address, "["); bracketed {
		return strings.TrimSuffix(inner, "]")
	}
	return address
}

// Loopback reports whether only this machine reaches an address, given as host or
// host:port.
func Loopback(address string) bool {
	host := hostOf(address)
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// requiresAuth says whether a service at the address asks who they are; made: keys were
// made, though none of them may hold any more: that the last one expired must not
// open the service to everybody. It refuses what would be open by mistake, or shut
// to everybody.
func (c Config) requiresAuth(listen string, made bool) (bool, error) {
	shown := c.JWKSURL != "" || c.AdminTokenFile != "" || made
	local := Loopback(listen)
	switch {
	case c.Require == Never || c.Require == Auto && local && !shown:
		return false, nil
	case shown:
		return true, nil
	}
	const means = "set access.adminTokenFile or access.jwksURL, or make a key first with `freshet keys create` while the service listens on loopback"
	if local {
		return false, fmt.Errorf("access.require: it is always, and nobody could ever call: %s", means)
	}
	return false, fmt.Errorf("access: the service would listen on %s, beyond loopback, and there is nothing to tell callers apart by: %s; if anybody who reaches it may read and administer, say access.require: never", listen, means)
}
