package token

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Check returns the first mistake in the configuration. insecure allows plain http to other
// machines.
func (c Config) Check(insecure bool) error {
	if _, known := presets[c.Preset]; !known && c.Preset != "" {
		return fmt.Errorf("preset: %q is unknown; the presets of token endpoints are %s", c.Preset, strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
	}
	switch c.Grant {
	case ClientCredentials, RefreshToken, JWTBearer:
		if err := checkURL(c.TokenURL, insecure); err != nil {
			return fmt.Errorf("tokenURL: %w", err)
		}
		if c.Request != nil {
			return fmt.Errorf("request: is only for the grant login; the grant %s uses tokenURL", c.Grant)
		}
	case Login:
		if c.Request == nil {
			return errors.New("request: is missing; the grant login needs the request that returns a token")
		}
		if err := c.Request.check(insecure); err != nil {
			return fmt.Errorf("request.%w", err)
		}
	default:
		return fmt.Errorf("grant: %q must be client-credentials, refresh-token, jwt-bearer or login", c.Grant)
	}
	if err := c.checkGrant(); err != nil {
		return err
	}
	if c.Consent.RevokeURL != "" {
		if err := checkURL(c.Consent.RevokeURL, insecure); err != nil {
			return fmt.Errorf("consent.revokeURL: %w", err)
		}
	}
	if err := c.Consent.check(insecure); err != nil {
		return fmt.Errorf("consent.%w", err)
	}
	for _, p := range []struct{ name, value string }{{"value", c.Value}, {"expires", c.Expires}, {"refresh", c.Refresh}} {
		if _, err := parsePlace(p.value); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if c.RenewBefore < 0 || c.Lifetime < 0 || c.Lifetime > maxLifetime {
		return fmt.Errorf("renewBefore and lifetime: %v and %v must not be negative, and lifetime is at most %v", c.RenewBefore, c.Lifetime, maxLifetime)
	}
	return nil
}

func (c Config) checkGrant() error {
	_, clientSecret := c.Secrets()[secretClientSecret]
	switch {
	case c.ClientAuth != "" && c.ClientAuth != "body" && c.ClientAuth != "basic":
		return fmt.Errorf("clientAuth: %q must be body or basic", c.ClientAuth)
	case c.ClientID != "" && c.ClientIDEnv != "":
		return errors.New("clientId: write either clientId or clientIdEnv")
	case c.ClientSecretEnv != "" && c.ClientSecretFile != "":
		return errors.New("clientSecretFile: write either clientSecretEnv or clientSecretFile")
	case c.RefreshTokenEnv != "" && c.RefreshTokenFile != "":
		return errors.New("refreshTokenFile: write either refreshTokenEnv or refreshTokenFile")
	case (c.Grant == ClientCredentials || c.Grant == RefreshToken) && c.ClientID == "" && c.ClientIDEnv == "":
		return errors.New("clientId: is missing; the grant needs clientId or clientIdEnv")
	case c.Grant == ClientCredentials && !clientSecret:
		return errors.New("clientSecretFile: is missing; the grant needs clientSecretFile or clientSecretEnv")
	case c.Grant == JWTBearer && c.JWT == nil:
		return errors.New("jwt: is missing; the grant jwt-bearer needs jwt.keyFile")
	case c.Grant != JWTBearer && c.JWT != nil:
		return fmt.Errorf("jwt: is only for the grant jwt-bearer, not for %s; remove jwt or set grant: jwt-bearer", c.Grant)
	case c.Grant != RefreshToken && (c.RefreshTokenEnv != "" || c.RefreshTokenFile != ""):
		return fmt.Errorf("refreshTokenFile: is only for the grant refresh-token, not for %s; remove it", c.Grant)
	case c.JWT != nil && (c.JWT.KeyEnv == "") == (c.JWT.KeyFile == ""):
		return errors.New("jwt: write either keyFile or keyEnv, the place of the private key")
	case c.JWT != nil && (c.JWT.Lifetime < 0 || c.JWT.Lifetime > time.Hour):
		return fmt.Errorf("jwt.lifetime: %v must be from 0s to 1h", c.JWT.Lifetime)
	case c.JWT != nil && c.JWT.SendIn != "" && c.JWT.SendIn != "form" && c.JWT.SendIn != "header":
		return fmt.Errorf("jwt.sendIn: %q must be form or header", c.JWT.SendIn)
	}
	return nil
}

func (c Consent) check(insecure bool) error {
	if c.AuthorizeURL != "" {
		if err := checkURL(c.AuthorizeURL, insecure); err != nil {
			return fmt.Errorf("authorizeURL: %w", err)
		}
	}
	if c.RedirectURL == "" {
		return nil
	}
	if u, err := url.Parse(c.RedirectURL); err != nil || u.Scheme != "http" || u.Port() == "" || !isLoopback(u.Hostname()) {
		return fmt.Errorf("redirectURL: %q must be an address on loopback with a port, such as http://127.0.0.1:8765/callback", c.RedirectURL)
	}
	return nil
}

func (r Request) check(insecure bool) error {
	if err := checkURL(strings.NewReplacer("{", "", "}", "").Replace(r.URL), insecure); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if u, err := url.Parse(r.URL); err != nil || strings.ContainsAny(u.Host, "{}") {
		return errors.New("url: must not have a placeholder in its host")
	}
	if r.Method != "" && r.Method != http.MethodGet && r.Method != http.MethodPost {
		return fmt.Errorf("method: %q must be GET or POST", r.Method)
	}
	if r.Body != "" && r.Method == http.MethodGet {
		return errors.New("body: a GET request has no body; set `method: POST`")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Secrets)) {
		if s := r.Secrets[name]; (s.Env == "") == (s.File == "") {
			return fmt.Errorf("secrets.%s: write either env or file", name)
		}
	}
	texts := map[string]string{"url": r.URL, "body": r.Body}
	for name, value := range r.Headers {
		texts["headers."+name] = value
	}
	for _, setting := range slices.Sorted(maps.Keys(texts)) {
		for _, found := range placeholder.FindAllStringSubmatch(texts[setting], -1) {
			if _, known := r.Secrets[found[1]]; !known && found[1] != secretRefresh {
				return fmt.Errorf("%s: uses {%s}, which secrets does not define", setting, found[1])
			}
		}
	}
	return nil
}

// checkURL returns an error unless the text is a URL to which a secret may be sent. The error does
// not contain the text.
func checkURL(text string, insecure bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return errors.New("must be a URL with a scheme (https) and a host")
	case u.User != nil || u.Fragment != "":
		return errors.New("must have no user and no fragment")
	case u.Scheme == "http" && !insecure && !isLoopback(u.Hostname()):
		return errors.New("would send secrets unencrypted over http; use https, or set insecure: true for the source if the network is trusted")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// place says where a response contains a value: in the body, in a header or in a cookie.
type place struct{ kind, name string }

// parsePlace parses a place, such as body:access_token. An empty text is the empty place.
func parsePlace(text string) (place, error) {
	if text == "" {
		return place{}, nil
	}
	kind, name, found := strings.Cut(text, ":")
	switch {
	case !found || name == "" || !slices.Contains([]string{"body", "header", "cookie"}, kind):
		return place{}, fmt.Errorf("%q must be body:PATH, header:NAME or cookie:NAME", text)
	case kind == "body":
		return place{kind, name}, announced.CheckPath(name)
	}
	return place{kind, name}, nil
}

// NewClient returns an HTTP client for token endpoints. It follows no redirects, because a secret
// must not be sent to another address.
func NewClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: 5 * time.Second,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		},
	}
}
