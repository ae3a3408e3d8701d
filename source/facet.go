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
	"regexp"
	"slices"
	"time"
)

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

	// PublishChanges has each change of content told on the source's change topic.
	PublishChanges bool `yaml:"publishChanges"`

	FreshFor    time.Duration `yaml:"freshFor"`    // a snapshot checked within it is FRESH
	NotFoundFor time.Duration `yaml:"notFoundFor"` // an absence is believed that long
	FailedFor   time.Duration `yaml:"failedFor"`   // after a dead letter nobody asks again for that long
	// KeepFor is how long content is kept and served after its fetch, an absence after its
	// check, and a status without a snapshot after its last failure; then they are deleted.
	// 0: content without limit, the others for 7 days.
	KeepFor  time.Duration `yaml:"keepFor"`
	Cooldown time.Duration `yaml:"cooldown"` // between two explicit refreshes of an entity

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

// HasMissingParams reports whether a param that is empty for the facet has no value in these.
func (f Facet) HasMissingParams(params map[string]string) bool {
	for name, value := range f.Params {
		if value == "" && params[name] == "" {
			return true
		}
	}
	return false
}

// EntityParams returns those of the params that the facet leaves open; nil for none.
func (f Facet) EntityParams(params map[string]string) map[string]string {
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

// DefaultFacet returns the settings of a facet that says nothing else.
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

// UnmarshalYAML lets a facet that leaves settings out have the default ones.
func (f *Facet) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Facet
	p := plain(DefaultFacet())
	err := unmarshal(&p)
	*f = Facet(p)
	return err
}

// compiledFacet is a Facet ready for use.
type compiledFacet struct {
	Facet
	key       *regexp.Regexp
	documents []compiledDocument // sorted by name
	params    map[string]template
	paths     *pathNode
	version   int64
}

func compileFacet(config Facet, auth Auth) (*compiledFacet, error) {
	f := &compiledFacet{Facet: config, params: map[string]template{}}
	pattern, err := regexp.Compile("^(?:" + config.KeyPattern + ")$")
	if config.KeyPattern == "" {
		return nil, errors.New("keyPattern: \"\" matches no key; leave it out for the usual one, or write one as in \"[0-9]{1,20}\"")
	}
	if err != nil {
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
		d, err := compileDocument(name, config.Documents[name], auth, func(name string) bool {
			_, known := f.params[name]
			return known || name == keyParam
		})
		if err != nil {
			return nil, fmt.Errorf("documents.%s.%w", name, err)
		}
		f.documents = append(f.documents, d)
	}
	if config.Conditional && len(f.documents) > 1 {
		return nil, errors.New("conditional: needs a facet of exactly one document")
	}
	if d := f.documents[0]; config.Conditional && (d.method != http.MethodGet || d.Paging != nil) {
		return nil, errors.New("conditional: only a GET that has no paging can be asked conditionally")
	}
	if f.paths, err = newPaths(config.Select, config.Ignore); err != nil {
		return nil, err
	}
	f.version = extractVersion(config)
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

// extractVersion returns a number that differs between settings that extract
// different content, so that a changed setting is not taken for a changed entity.
func extractVersion(f Facet) int64 {
	names := slices.Sorted(maps.Keys(f.Documents))
	text := fmt.Appendf(nil, "%q %q %q", names, f.Select, f.Ignore)
	for _, name := range names { // what is asked for by a path alone has the version that it always had
		text = append(text, f.Documents[name].contentSettings(name)...)
	}
	sum := sha256.Sum256(text)
	return int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
}

// contentSettings writes what else than the path decides what a document holds; nothing: only that.
func (d Document) contentSettings(name string) string {
	method := cmp.Or(d.Method, http.MethodGet)
	if method == http.MethodGet && d.GraphQL == nil && d.Paging == nil {
		return ""
	}
	text := fmt.Sprintf("\n%q %q %q %q", name, method, d.Body, d.ContentType)
	if d.GraphQL != nil {
		query, _ := json.Marshal(d.GraphQL) // it was written before, when the document was compiled
		text += fmt.Sprintf(" query %s", query)
	}
	if p := d.Paging; p != nil {
		text += fmt.Sprintf(" pages %v %q %q %q %q", p.Link, p.Cursor, p.Param, p.Variable, p.Items)
	}
	return text
}
