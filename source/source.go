package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/freshet/freshet/source/announced"
)

// Config describes one upstream. The yaml tags are the names in the configuration file.
type Config struct {
	// BaseURL is the beginning of the URLs of documents, such as https://api.example.com/v3. A document
	// can have its own baseURL. Redirects and links to a next page are followed only if they stay below
	// it, so that the credential is never sent elsewhere.
	BaseURL string `yaml:"baseURL"`
	// Insecure allows sending a credential over plain http to another machine.
	Insecure bool `yaml:"insecure,omitempty"`
	Auth     Auth `yaml:"auth"`
	// Credentials lists several credentials for the same upstream. For each call the limiter
	// chooses the candidate credential with the most quota left.
	Credentials []Credential `yaml:"credentials,omitempty"`
	// Headers are the headers of every call, by name, for example a User-Agent that identifies the
	// operator.
	Headers map[string]string `yaml:"headers,omitempty"`
	// Timeout is the maximum duration of one call, to the last byte of the response body.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBody is the maximum size of the response body of one document, both compressed and
	// decompressed. For a paged document it limits the sum of the bodies of all pages.
	MaxBody Bytes `yaml:"maxBody"`
	// Gzip requests compressed responses (Accept-Encoding: gzip).
	Gzip bool `yaml:"gzip"`
	// Rules classify responses. The first matching rule decides; a response that matches none
	// is classified by its status.
	Rules []Rule `yaml:"rules"`
	// Announced lists the headers and body members in which responses report the state of a
	// quota policy.
	Announced []announced.Rule `yaml:"announced,omitempty"`
	// Facets are the kinds of data of the source, by name. Each facet is read and refreshed separately.
	Facets map[string]Facet `yaml:"facets"`
	// Dial opens the connections to the upstream; nil means TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error) `yaml:"-"`
}

// DefaultConfig returns the defaults for settings that the configuration file leaves out.
func DefaultConfig() Config {
	return Config{Timeout: 10 * time.Second, MaxBody: 16 << 20, Gzip: true}
}

// Source fetches and reads the entities of one upstream. Its methods are safe for concurrent
// use.
type Source struct {
	name        string
	config      Config
	credentials credentials
	base        *url.URL
	rules       rules
	announced   announced.Rules
	facets      map[string]*compiledFacet
	transport   *http.Transport
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]*$")

// New returns a source, or one error that lists every invalid setting. The names of the settings
// are relative to the source's section of the configuration.
//
// secrets maps a credential's name to its value. A source that lists no credentials uses the empty
// name. A call whose credential has no value, or an empty one, is sent without a credential.
//
// inFlight is the maximum number of concurrent calls. The source keeps up to inFlight idle
// connections, because opening a new connection could take longer than the lifetime of a permit.
func New(name string, config Config, secrets map[string]string, inFlight int) (*Source, error) {
	s := &Source{name: name, config: config, facets: map[string]*compiledFacet{}}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	var err error
	if s.base, err = parseBaseURL(config.BaseURL); err != nil {
		errs = append(errs, err)
	}
	if config.Timeout <= 0 {
		fail("timeout: %v must be positive", config.Timeout)
	}
	if config.MaxBody <= 0 {
		fail("maxBody: %d must be positive", config.MaxBody)
	}
	if s.credentials, err = newCredentials(config.Credentials, config.Auth, config.Insecure); err != nil {
		errs = append(errs, err)
	} else if err := setCredentials(s, secrets); err != nil {
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
	if len(errs) == 0 {
		errs = slices.Concat(aliasGraph(s.facets).check(), checkLinks(s.facets), compileDerived(s.facets))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.transport = newTransport(inFlight, config.Dial)
	return s, nil
}

// parseBaseURL returns a base URL. Its errors do not contain the URL, which may contain a password.
func parseBaseURL(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("baseURL: must be a URL, for example https://api.example.com")
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "":
		return nil, errors.New("baseURL: needs a scheme (http or https) and a host, as in https://api.example.com")
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		return nil, errors.New("baseURL: must have no user, query or fragment; configure the credential in auth")
	}
	return base, nil
}

// Name returns the name of the source.
func (s *Source) Name() string { return s.name }

// HasFacet reports whether the source has a facet with that name.
func (s *Source) HasFacet(name string) bool {
	_, ok := s.facets[name]
	return ok
}

// Facet returns the settings of a facet, and false if the source has no facet with that name.
func (s *Source) Facet(name string) (Facet, bool) {
	f, ok := s.facets[name]
	if !ok {
		return Facet{}, false
	}
	return f.Facet, true
}

// FacetNames returns the names of the facets, sorted.
func (s *Source) FacetNames() []string { return slices.Sorted(maps.Keys(s.facets)) }

// Close closes idle connections.
func (s *Source) Close() { s.transport.CloseIdleConnections() }
