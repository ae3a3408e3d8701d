// Package source is one upstream: how a request for an entity becomes calls,
// what an answer means, and how its content becomes the canonical bytes that are
// hashed and stored. An upstream is described by configuration; the packages
// below hold what configuration can't say. source knows no broker, no Redis and
// no database, and sends nothing without a permit from its caller.
package source

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Config describes one upstream. The yaml tags are its form in the
// configuration file.
type Config struct {
	// BaseURL is what every document's path is appended to. Redirects and links to the next
	// page are followed only below it, so that the credential does not leave it.
	BaseURL string `yaml:"baseURL"`
	// Insecure says that a credential may travel over http to another machine.
	Insecure bool `yaml:"insecure,omitempty"`
	Auth     Auth `yaml:"auth"`
	// Credentials are those that calls are made with, if there are several; each call
	// with the one that has most left.
	Credentials []Credential `yaml:"credentials,omitempty"`
	// Headers are sent with every call, as a User-Agent of one's own.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Timeout bounds one call, from the moment its permit is spent to the last
	// byte of the body.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBody bounds one document, compressed and decompressed; of one that comes in
	// pages, all of them together.
	MaxBody Bytes `yaml:"maxBody"`
	// Gzip says whether compressed answers are asked for.
	Gzip bool `yaml:"gzip"`
	// Rules say what an answer means, in order, the first match wins; what none
	// matches falls to the built-in rules.
	Rules []Rule `yaml:"rules"`
	// Announced says where answers tell of the quota's policies.
	Announced []announced.Rule `yaml:"announced,omitempty"`
	Facets    map[string]Facet `yaml:"facets"`
}

// DefaultConfig returns the settings of an upstream that says nothing else.
func DefaultConfig() Config {
	return Config{Timeout: 10 * time.Second, MaxBody: 16 << 20, Gzip: true}
}

// Source fetches and reads the entities of one upstream. Its methods may be
// called concurrently.
type Source struct {
	name        string
	config      Config
	credentials credentials
	base        *url.URL
	rules       []compiledRule
	announced   announced.Rules
	facets      map[string]*compiledFacet
	transport   *http.Transport
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]*$")

// New returns the source, or an error that names each wrong setting below the
// source's own. secrets are the credentials by name, the only one of a source that
// lists none by the empty name; where one is empty or missing none is sent. inFlight is the number of calls that are under way at once at most: as many
// connections are kept open, since dialling delays a call past its permit.
func New(name string, config Config, secrets map[string]string, inFlight int) (*Source, error) {
	s := &Source{name: name, config: config, facets: map[string]*compiledFacet{}}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	base, err := url.Parse(config.BaseURL)
	switch {
	case err != nil:
		fail("baseURL: it is no URL; write it as in https://api.example.com")
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "":
		fail("baseURL: it needs a scheme (http or https) and a host, as in https://api.example.com") // not the value: it may hold a password
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		fail("baseURL: it must have no user, query or fragment; the credential goes into auth")
	}
	s.base = base
	if config.Timeout <= 0 {
		fail("timeout: %v must be positive", config.Timeout)
	}
	if config.MaxBody <= 0 {
		fail("maxBody: %d must be positive", config.MaxBody)
	}
	if s.credentials, err = newCredentials(config.Credentials, config.Auth); err != nil {
		errs = append(errs, err)
	} else if err := s.setCredentials(secrets); err != nil {
		errs = append(errs, err)
	}
	if err := config.Auth.check(); err != nil {
		errs = append(errs, err)
	}
	if err := checkHeaders(config.Headers, config.Auth); err != nil {
		fail("headers.%w", err)
	}
	if s.rules, err = compileRules(config.Rules); err != nil {
		errs = append(errs, err)
	}
	if s.announced, err = announced.Compile(config.Announced); err != nil {
		fail("announced%w", err)
	}
	if len(config.Facets) == 0 {
		fail("facets: a source needs at least one")
	}
	for _, name := range slices.Sorted(maps.Keys(config.Facets)) {
		f, err := compileFacet(config.Facets[name], config.Auth)
		if err != nil {
			fail("facets.%s.%w", name, err)
		}
		s.facets[name] = f
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.transport = newTransport(inFlight)
	return s, nil
}

// Name returns the source's name.
func (s *Source) Name() string { return s.name }

// HasFacet reports whether there is a facet of that name.
func (s *Source) HasFacet(name string) bool {
	_, ok := s.facets[name]
	return ok
}

// Facet returns the settings of a facet and whether there is one of that name.
func (s *Source) Facet(name string) (Facet, bool) {
	f, ok := s.facets[name]
	if !ok {
		return Facet{}, false
	}
	return f.Facet, true
}

// CheckKey returns nil if key is one of the facet's, and otherwise says why not.
// The general rules for keys are schemas.CheckKey's.
func (s *Source) CheckKey(facet, key string) error {
	f, ok := s.facets[facet]
	if !ok {
		return fmt.Errorf("source %s has no facet %q; it has %s", s.name, facet,
			strings.Join(slices.Sorted(maps.Keys(s.facets)), ", "))
	}
	if !f.key.MatchString(key) {
		return fmt.Errorf("the key does not match the pattern of %s/%s: %s", s.name, facet, f.KeyPattern)
	}
	return nil
}

// Close closes the idle connections.
func (s *Source) Close() { s.transport.CloseIdleConnections() }
