package source

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"time"
)

// Facet is one separately refreshed part of an entity.
type Facet struct {
	// KeyPattern is a regular expression that must match a whole key. Each named group provides
	// the value of a placeholder: (?P<owner>[^/]+)/(?P<repo>[^/]+) provides {owner} and {repo}.
	KeyPattern string `yaml:"keyPattern"`
	// KeyFold makes several spellings of a key one key, before KeyPattern is applied: lower (case),
	// nfc (composed Unicode characters), or both. All readers get the same entity.
	KeyFold KeyFold `yaml:"keyFold,omitempty" enum:"none,lower,nfc,nfc-lower"`
	// Documents are the parts of an entity, by name. They are fetched concurrently, and are stored as one
	// JSON object with a member for each document.
	Documents map[string]Document `yaml:"documents"`
	Delivery  `yaml:",inline"`
	// Params are values for the documents' {placeholders}, by name. A value may contain {key}, the
	// entity's key, and the named groups of KeyPattern. The params of a request override these values,
	// and the named groups override both. If a value is empty, each entity must be registered with its
	// own value for that param. A section with from and path takes the value from the snapshot of another
	// facet of the same key (an alias).
	Params map[string]Param `yaml:"params"`
	// Select lists the paths to keep, as document.member; empty keeps everything. A path begins with the
	// name of a document, or with * for every document. A document in which no selected path finds a value
	// is bad content.
	Select []string `yaml:"select"`
	// Ignore lists paths that are kept, but are left out when freshet decides if the content has changed.
	// A path begins with the name of a document, or with * for every document.
	Ignore []string `yaml:"ignore"`
	// Conditional sends the stored validator (ETag or Last-Modified) with the request. The upstream
	// then answers 304 without a body if the document is unchanged. The facet must have exactly one
	// document.
	Conditional bool `yaml:"conditional"`

	// Public allows shared caches to store responses of the API (Cache-Control: public). By
	// default only private caches may.
	Public bool `yaml:"public"`

	// PublishChanges publishes a record on the source's change topic for each change of
	// content.
	PublishChanges bool `yaml:"publishChanges"`

	// FreshFor is how long a snapshot is FRESH after a check. A later read refreshes it.
	FreshFor time.Duration `yaml:"freshFor"`
	// NotFoundFor is how long a not-found result is valid.
	NotFoundFor time.Duration `yaml:"notFoundFor"`
	// FailedFor is how long an entity is on hold after its update request became a dead letter.
	FailedFor time.Duration `yaml:"failedFor"`
	// KeepFor is the retention of an entity's state. Content is deleted this long after its
	// fetch, a not-found result after its check, and a status without a snapshot after its last
	// failure. With 0s, content is kept without limit; a not-found result and a status are kept
	// for 7 days.
	KeepFor time.Duration `yaml:"keepFor"`
	// Cooldown is the minimum time between two refreshes of an entity that clients request.
	Cooldown time.Duration `yaml:"cooldown"`

	// Retry lists the delays before the scheduled retries of a temporary failure, at most 10. After the
	// last retry fails, the request becomes a dead letter. An empty list disables scheduled retries.
	Retry []time.Duration `yaml:"retry"`
	// ShrinkGuard is the minimum size of new content as a fraction of the stored size, from 0
	// to 1. It detects upstreams that answer 200 with a truncated list instead of an error. 0
	// disables the check.
	ShrinkGuard float64 `yaml:"shrinkGuard"`

	aliases          []Alias
	aliasUsers       []string
	aliasNotFoundFor time.Duration
}

// Shrunk reports whether ShrinkGuard forbids replacing the stored content by new content. The
// parameters are the lengths in bytes of the new and of the stored extracted content.
func (f Facet) Shrunk(size, stored int) bool {
	return float64(size) < f.ShrinkGuard*float64(stored)
}

// EntityParams returns the entries of params that each entity must set, because their value in the
// facet's Params is empty. It returns nil if there are none.
func (f Facet) EntityParams(params map[string]string) map[string]string {
	var open map[string]string
	for name, value := range params {
		if own, known := f.Params[name]; known && own == (Param{}) && value != "" {
			if open == nil {
				open = map[string]string{}
			}
			open[name] = value
		}
	}
	return open
}

// DefaultFacet returns the defaults for settings that the configuration file leaves out.
func DefaultFacet() Facet {
	return Facet{
		KeyPattern:  "[0-9A-Za-z_-]{1,80}",
		FreshFor:    time.Hour,
		NotFoundFor: time.Hour,
		FailedFor:   6 * time.Hour,
		Cooldown:    time.Minute,
		Retry:       []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute},
	}
}

// UnmarshalYAML fills settings that the file leaves out from DefaultFacet.
func (f *Facet) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Facet
	p := plain(DefaultFacet())
	err := unmarshal(&p)
	*f = Facet(p)
	return err
}

// compiledFacet is a validated Facet.
type compiledFacet struct {
	Facet
	key       keyPattern
	documents []compiledDocument // the documents of the facet, sorted by name
	params    map[string]template
	paths     *pathNode
	version   int64

	names          []string // names of all placeholders except {key}, sorted
	openParams     []string // names of the params with an empty default, sorted
	requiredGroups []string // named groups of KeyPattern that documents use and that have no default
	// checksTargets is true if a key that matches KeyPattern could make a path segment empty, "." or
	// "..". `literalBytes` and `placeholders` are the maximum number of literal bytes, and of
	// placeholders, in the path and query of one document.
	checksTargets              bool
	literalBytes, placeholders int
}

func compileFacet(config Facet, auth Auth) (*compiledFacet, error) {
	if err := config.checkDelivery(); err != nil {
		return nil, err
	}
	if err := config.checkCollection(); err != nil {
		return nil, err
	}
	f := &compiledFacet{Facet: config, params: map[string]template{}}
	var err error
	if f.key, err = compileKeyPattern(config.KeyPattern); err != nil {
		return nil, fmt.Errorf("keyPattern: %w", err)
	}
	f.aliases, f.aliasUsers, f.aliasNotFoundFor, f.derivedUses = compileAliases(config.Params), nil, 0, nil
	if err := config.KeyFold.check(); err != nil {
		return nil, err
	}
	f.KeyFold = cmp.Or(config.KeyFold, FoldNone)
	for name, value := range config.Params {
		t, err := parseTemplate(value.Text)
		if err != nil {
			return nil, fmt.Errorf("params.%s: %w", name, err)
		}
		if name == keyParam {
			return nil, errors.New("params.key: {key} is always the entity's key; choose another name")
		}
		if err := f.key.checkParamTemplate(name, t); err != nil {
			return nil, err
		}
		f.params[name] = t
	}
	if config.Derived != nil {
		if err := config.checkDerived(); err != nil {
			return nil, err
		}
	} else if len(config.Documents) == 0 {
		return nil, errors.New("documents: a facet needs at least one document, or the setting derived")
	}
	for _, name := range slices.Sorted(maps.Keys(config.Documents)) {
		d, err := compileDocument(name, config.Documents[name], auth, func(name string) bool {
			_, known := f.params[name]
			return known || name == keyParam || slices.Contains(f.key.groups, name)
		})
		if err != nil {
			return nil, fmt.Errorf("documents.%s.%w", name, err)
		}
		if slices.ContainsFunc(d.target.segments, template.hasKeyPath) {
			if err := f.key.checkSegments(); err != nil {
				return nil, fmt.Errorf("keyPattern: %w", err)
			}
		}
		if err := config.checkPages(d.Paging); err != nil {
			return nil, fmt.Errorf("documents.%s.%w", name, err)
		}
		d.selections = config.selectionsOf(name)
		f.documents = append(f.documents, d)
	}
	f.compileKeyUse()
	if err := f.compileLinks(); err != nil {
		return nil, err
	}
	if config.Conditional && len(f.documents) > 1 {
		return nil, errors.New("conditional: allowed only for a facet with exactly one document; remove it")
	}
	if config.Conditional && (f.documents[0].method != http.MethodGet || (f.documents[0].Paging != nil && config.Collection == nil)) {
		return nil, errors.New("conditional: allowed only for a GET request without paging; remove it")
	}
	if err := config.checkDocumentNames(); err != nil {
		return nil, err
	}
	if f.paths, err = newPaths(config.Select, config.Ignore); err != nil {
		return nil, err
	}
	f.version = config.ExtractVersion()
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"freshFor", config.FreshFor}, {"notFoundFor", config.NotFoundFor}, {"failedFor", config.FailedFor}} {
		if d.value <= 0 {
			return nil, fmt.Errorf("%s: %v must be positive", d.name, d.value)
		}
	}
	if config.KeepFor < 0 || config.Cooldown < 0 {
		return nil, fmt.Errorf("keepFor and cooldown: %v and %v must not be negative", config.KeepFor, config.Cooldown)
	}
	return f, config.checkRetryAndGuard()
}

// maxRetries bounds the length of Facet.Retry, so that a persistent failure becomes a dead
// letter.
const maxRetries = 10

func (f Facet) checkRetryAndGuard() error {
	if len(f.Retry) > maxRetries {
		return fmt.Errorf("retry: has %d delays; at most %d are allowed", len(f.Retry), maxRetries)
	}
	for i, wait := range f.Retry {
		if wait <= 0 {
			return fmt.Errorf("retry[%d]: %v must be positive; to disable scheduled retries write retry: []", i, wait)
		}
	}
	if math.IsNaN(f.ShrinkGuard) || f.ShrinkGuard < 0 || f.ShrinkGuard > 1 {
		return fmt.Errorf("shrinkGuard: %v must be a fraction of the stored size, from 0 (disabled) to 1", f.ShrinkGuard)
	}
	return nil
}

// ExtractVersion returns a hash of the settings that determine the extracted content. Each snapshot
// is stored with this number (Content.ExtractVersion). A different number shows that the content may
// differ because of a changed setting, and not because the entity has changed.
func (f Facet) ExtractVersion() int64 {
	names := slices.Sorted(maps.Keys(f.Documents))
	text := fmt.Appendf(nil, "%q %q %q", names, f.Select, f.Ignore)
	// contentSettings returns "" for plain GET documents, so that their extract version is the same
	// as in earlier releases. Snapshots that an earlier release stored then do not count as changed.
	for _, name := range names {
		text = append(text, f.Documents[name].contentSettings(name)...)
	}
	if f.Raw != nil {
		text = fmt.Appendf(text, "\nraw %q", f.Raw.MediaType)
	}
	text = append(text, f.Collection.ContentSettings()...)
	text = append(text, f.Derived.ContentSettings()...)
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
}

// contentSettings formats the settings of a document that determine its content, except its path.
// It returns "" for a GET without paging.
func (d Document) contentSettings(name string) string {
	method := cmp.Or(d.Method, http.MethodGet)
	if method == http.MethodGet && d.GraphQL == nil && d.Paging == nil {
		return ""
	}
	text := fmt.Sprintf("\n%q %q %q %q", name, method, d.Body, d.ContentType)
	if d.GraphQL != nil {
		query, _ := json.Marshal(d.GraphQL) // cannot fail: compileDocument has encoded the same query
		text += fmt.Sprintf(" query %s", query)
	}
	if p := d.Paging; p != nil {
		text += fmt.Sprintf(" pages %v %q %q %q %q", p.Link, p.Cursor, p.Param, p.Variable, p.Items)
	}
	return text
}
