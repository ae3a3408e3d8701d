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
	"math"
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
	// BaseURL is what every document's path is appended to.
	BaseURL string `yaml:"baseURL"`
	Auth    Auth   `yaml:"auth"`
	// Credentials are those that calls are made with, if there are several; each call
	// with the one that has most left.
	Credentials []Credential `yaml:"credentials,omitempty"`
	// Timeout bounds one call, from the moment its permit is spent to the last
	// byte of the body.
	Timeout time.Duration `yaml:"timeout"`
	// MaxBody bounds one answer, compressed and decompressed.
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

// Facet is one separately refreshed part of an entity.
type Facet struct {
	// KeyPattern is a regular expression that a whole key must match.
	KeyPattern string `yaml:"keyPattern"`
	// Documents are fetched together and stored as one JSON object by name.
	Documents map[string]Document `yaml:"documents"`
	// Params are values for the documents' {placeholders}; {key} in one is the
	// entity's key. A request's own params win; an empty one is for those that the
	// entity is registered with.
	Params map[string]string `yaml:"params"`
	// Select lists the paths to keep, the first segment being the document's
	// name; empty keeps all. Ignore lists paths that are kept but do not count
	// as a change.
	Select []string `yaml:"select"`
	Ignore []string `yaml:"ignore"`
	// Conditional sends the stored validator along, where the facet has one
	// document: an unchanged answer is then a 304 without a body.
	Conditional bool `yaml:"conditional"`

	// Public lets caches that many readers share keep what is answered
	// (Cache-Control: public); otherwise only each reader's own may.
	Public bool `yaml:"public"`

	// Changes has each change of content told on the source's change topic.
	Changes bool `yaml:"changes"`

	FreshFor  time.Duration `yaml:"freshFor"`  // a snapshot checked within it is FRESH
	AbsentFor time.Duration `yaml:"absentFor"` // an absence is believed that long
	FailedFor time.Duration `yaml:"failedFor"` // after a dead letter nobody asks again for that long
	KeepFor   time.Duration `yaml:"keepFor"`   // a snapshot fetched longer ago is not served; 0: no limit
	Cooldown  time.Duration `yaml:"cooldown"`  // between two explicit refreshes of an entity

	// Retry says how long to wait before each scheduled retry of a fetch that
	// failed for a reason which may pass; after the last of them it is given up.
	// Empty: no scheduled retry.
	Retry []time.Duration `yaml:"retry"`
	// ShrinkGuard is the part of the stored content's size, 0 to 1, that new
	// content must have to be believed: some upstreams answer 200 with fewer
	// entries where they should say that they have none at present. 0: no guard.
	ShrinkGuard float64 `yaml:"shrinkGuard"`
}

// Shrunk reports whether content of size bytes is too small, by ShrinkGuard, to
// take the place of stored bytes. Both are of the content as it is extracted.
func (f Facet) Shrunk(size, stored int) bool {
	return float64(size) < f.ShrinkGuard*float64(stored)
}

// LeavesOpen reports whether a param that is empty for the facet has no value in these.
func (f Facet) LeavesOpen(params map[string]string) bool {
	for name, value := range f.Params {
		if value == "" && params[name] == "" {
			return true
		}
	}
	return false
}

// Open returns those of the params that the facet leaves open; nil for none.
func (f Facet) Open(params map[string]string) map[string]string {
	var open map[string]string
	for name, value := range params {
		if own, known := f.Params[name]; known && own == "" && value != "" {
			if open == nil {
				open = map[string]string{}
			}
			open[name] = value
		}
	}
	return open
}

// Document is one call's worth of an entity.
type Document struct {
	// Path is a path and query below the base URL, with {placeholders} in path
	// segments and query values.
	Path string `yaml:"path"`
}

// DefaultConfig returns the settings of an upstream that says nothing else.
func DefaultConfig() Config {
	return Config{Timeout: 10 * time.Second, MaxBody: 16 << 20, Gzip: true}
}

// DefaultFacet returns the settings of a facet that says nothing else.
func DefaultFacet() Facet {
	return Facet{
		KeyPattern: "[0-9A-Za-z_-]{1,80}",
		FreshFor:   time.Hour,
		AbsentFor:  time.Hour,
		FailedFor:  6 * time.Hour,
		Cooldown:   time.Minute,
		Retry:      []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute},
	}
}

// UnmarshalYAML lets a facet that leaves settings out have the default ones.
func (f *Facet) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Facet
	p := plain(DefaultFacet())
	err := unmarshal(&p)
	*f = Facet(p)
	return err
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
	facets      map[string]*facet
	transport   *http.Transport
}

// facet is a Facet ready for use.
type facet struct {
	Facet
	key       *regexp.Regexp
	documents []document // sorted by name
	params    map[string]template
	paths     *pathNode
	version   int64
}

type document struct {
	name   string
	target target
}

var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]*$")

// New returns the source, or an error that names each wrong setting below the
// source's own. secrets are the credentials by name, the only one of a source that
// lists none by the empty name; where one is empty or missing none is sent. inFlight is the number of calls that are under way at once at most: as many
// connections are kept open, since dialling delays a call past its permit.
func New(name string, config Config, secrets map[string]string, inFlight int) (*Source, error) {
	s := &Source{name: name, config: config, facets: map[string]*facet{}}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	base, err := url.Parse(config.BaseURL)
	switch {
	case err != nil:
		fail("baseURL: %w", err)
	case (base.Scheme != "http" && base.Scheme != "https") || base.Host == "":
		fail("baseURL: %q needs a scheme (http or https) and a host", config.BaseURL)
	case base.RawQuery != "" || base.Fragment != "" || base.User != nil:
		fail("baseURL: %q must have no user, query or fragment", config.BaseURL)
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
		f, err := compileFacet(config.Facets[name])
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

func compileFacet(config Facet) (*facet, error) {
	f := &facet{Facet: config, params: map[string]template{}}
	pattern, err := regexp.Compile("^(?:" + config.KeyPattern + ")$")
	if err != nil || config.KeyPattern == "" {
		return nil, fmt.Errorf("keyPattern: %q is not a regular expression: %w", config.KeyPattern, err)
	}
	f.key = pattern
	for name, value := range config.Params {
		t, err := parseTemplate(value)
		if err != nil {
			return nil, fmt.Errorf("params.%s: %w", name, err)
		}
		if name == keyParam {
			return nil, errors.New("params.key: {key} is always the entity's key; choose another name")
		}
		for _, used := range t.placeholders() {
			if used != keyParam {
				return nil, fmt.Errorf("params.%s: only {key} can be used here, not {%s}", name, used)
			}
		}
		f.params[name] = t
	}
	if len(config.Documents) == 0 {
		return nil, errors.New("documents: a facet needs at least one")
	}
	for _, name := range slices.Sorted(maps.Keys(config.Documents)) {
		t, err := parseTarget(config.Documents[name].Path)
		if err != nil {
			return nil, fmt.Errorf("documents.%s.path: %w", name, err)
		}
		for _, used := range t.placeholders() {
			if _, known := f.params[used]; !known && used != keyParam {
				return nil, fmt.Errorf("documents.%s.path: uses {%s}, which params does not define", name, used)
			}
		}
		f.documents = append(f.documents, document{name, t})
	}
	if config.Conditional && len(f.documents) > 1 {
		return nil, errors.New("conditional: needs a facet of exactly one document")
	}
	if f.paths, err = newPaths(config.Select, config.Ignore); err != nil {
		return nil, err
	}
	f.version = extractVersion(config)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"freshFor", config.FreshFor}, {"absentFor", config.AbsentFor}, {"failedFor", config.FailedFor}} {
		if d.value <= 0 {
			return nil, fmt.Errorf("%s: %v must be positive", d.name, d.value)
		}
	}
	if config.KeepFor < 0 || config.Cooldown < 0 {
		return nil, fmt.Errorf("keepFor and cooldown: %v and %v must not be negative", config.KeepFor, config.Cooldown)
	}
	return f, config.checkRetryAndGuard()
}

// maxRetries bounds how long a failure can go on before a person hears of it.
const maxRetries = 10

func (f Facet) checkRetryAndGuard() error {
	if len(f.Retry) > maxRetries {
		return fmt.Errorf("retry: %d waits are too many; at most %d are allowed", len(f.Retry), maxRetries)
	}
	for i, wait := range f.Retry {
		if wait <= 0 {
			return fmt.Errorf("retry[%d]: %v must be positive; for no scheduled retry write retry: []", i, wait)
		}
	}
	if math.IsNaN(f.ShrinkGuard) || f.ShrinkGuard < 0 || f.ShrinkGuard > 1 {
		return fmt.Errorf("shrinkGuard: %v must be a part of the stored size, from 0 (no guard) to 1", f.ShrinkGuard)
	}
	return nil
}

// Name returns the source's name.
func (s *Source) Name() string { return s.name }

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
