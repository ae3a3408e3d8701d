package source

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// Param is the value of a placeholder: a text, or the path of a value in the snapshot of another
// facet (an alias).
type Param struct {
	// Text is the value. In the configuration file the param is then a text, not a section.
	Text string `yaml:"-"`
	// From is the facet whose snapshot of the same key has the value of the param. If that snapshot
	// is missing or no longer fresh, it is fetched first.
	From string `yaml:"from"`
	// Path is the path of the value in that snapshot, as document.member.
	Path string `yaml:"path"`
}

// UnmarshalYAML reads a text, or a section with from and path.
func (p *Param) UnmarshalYAML(unmarshal func(any) error) error {
	*p = Param{}
	if unmarshal(&p.Text) == nil {
		return nil
	}
	type plain Param
	return unmarshal((*plain)(p))
}

// MarshalYAML writes the form that UnmarshalYAML reads.
func (p Param) MarshalYAML() (any, error) {
	if p.From == "" && p.Path == "" {
		return p.Text, nil
	}
	type plain Param
	return plain(p), nil
}

// TextParams returns params with these texts.
func TextParams(texts map[string]string) map[string]Param {
	params := make(map[string]Param, len(texts))
	for name, text := range texts {
		params[name] = Param{Text: text}
	}
	return params
}

// isAlias reports whether the value comes from the snapshot of another facet.
func (p Param) isAlias() bool { return p.From != "" || p.Path != "" }

// Alias is a param whose value comes from the snapshot of another facet of the same key.
type Alias struct {
	Param string // name of the param that gets the value
	From  string // name of the facet that has the value
	Path  string // path of the value in the snapshot of the other facet
}

// Value returns the value in the content of the other facet. An error means that the content has no
// text and no number at the path.
func (a Alias) Value(content []byte) (string, error) {
	found := gjson.GetBytes(content, a.Path)
	if text := found.String(); text != "" && (found.Type == gjson.String || found.Type == gjson.Number) {
		return text, nil
	}
	return "", fmt.Errorf("the snapshot of %s has no text at %s, so {%s} has no value; correct params.%s.path", a.From, a.Path, a.Param, a.Param)
}

// Aliases returns the params whose values come from other facets, sorted by name. It returns nil
// until New has made a Source from the configuration of the facet.
func (f Facet) Aliases() []Alias { return f.aliases }

// AliasUsers returns the names of the facets that take a param from this facet, sorted. It returns
// nil until New has made a Source from the configuration of the facet.
func (f Facet) AliasUsers() []string { return f.aliasUsers }

// AliasNotFoundFor returns how long an entity of this facet counts as not found after the entity of its
// alias was not found. It is the shortest NotFoundFor of the facets that its params come from, or 0 if
// no param comes from a facet.
func (f Facet) AliasNotFoundFor() time.Duration { return f.aliasNotFoundFor }

func compileAliases(params map[string]Param) (aliases []Alias) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if p := params[name]; p.isAlias() {
			aliases = append(aliases, Alias{name, p.From, p.Path})
		}
	}
	return aliases
}

// aliasGraph has the facets of a source by name. Its edges are aliases.
type aliasGraph map[string]*compiledFacet

// check connects each facet with the facets that it takes params from. It returns one error for each
// invalid alias.
func (g aliasGraph) check() (errs []error) {
	names := slices.Sorted(maps.Keys(g))
	for _, name := range names {
		f := g[name]
		for _, a := range f.aliases {
			if err := g.checkAlias(name, f, a); err != nil {
				errs = append(errs, fmt.Errorf("facets.%s.params.%s.%w", name, a.Param, err))
				continue
			}
			from := g[a.From]
			if !slices.Contains(from.aliasUsers, name) {
				from.aliasUsers = append(from.aliasUsers, name)
			}
			if f.aliasNotFoundFor == 0 || from.NotFoundFor < f.aliasNotFoundFor {
				f.aliasNotFoundFor = from.NotFoundFor
			}
		}
	}
	for _, name := range names {
		if circle := g.circle(name, nil); circle != nil && name == slices.Min(circle) { // so that each circle is reported only once
			errs = append(errs, fmt.Errorf("facets.%s.params: these facets take params from each other, so none could be fetched first: %s; set one of these params to a text",
				name, strings.Join(append(circle, name), " from ")))
		}
	}
	return errs
}

func (g aliasGraph) checkAlias(name string, f *compiledFacet, a Alias) error {
	from, known := g[a.From]
	document, member, _ := strings.Cut(a.Path, ".")
	switch {
	case a.From == "" || a.Path == "":
		return errors.New("from: an alias needs `from` (the name of another facet) and `path`, as in {from: id, path: id.ocid}")
	case !known:
		return fmt.Errorf("from: there is no facet %q; the facets are: %s", a.From, strings.Join(slices.Sorted(maps.Keys(g)), ", "))
	case from.KeyFold != f.KeyFold:
		return fmt.Errorf("from: keyFold of %s is %q and of %s %q; both facets must have the same keyFold, because they have the same keys", a.From, from.KeyFold, name, f.KeyFold)
	case slices.Contains(f.key.groups, a.Param):
		return fmt.Errorf("from: a group of keyPattern has the name %s too; give one of them another name", a.Param)
	case from.Raw != nil:
		return fmt.Errorf("from: the content of %s is raw and has no members; take the value from a facet of JSON documents", a.From)
	case from.Derived != nil:
		return fmt.Errorf("from: the content of %s is computed and not fetched; take the value from another facet", a.From)
	case from.Collection != nil:
		return fmt.Errorf("from: %s is a collection, and its items are not content of one entity; take the value from another facet", a.From)
	case member == "":
		return fmt.Errorf("path: %q must be document.member, as in id.ocid", a.Path)
	}
	if _, known := from.Documents[document]; !known {
		return fmt.Errorf("path: %q must begin with a document of facet %s, which has %s", a.Path, a.From, strings.Join(slices.Sorted(maps.Keys(from.Documents)), ", "))
	}
	return from.checkStored(a.Path)
}

// checkStored returns an error if a value at the path is not stored, or does not count as a change.
// A changed alias must be noticed.
func (f *compiledFacet) checkStored(text string) error {
	p, err := parsePath(text)
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	at := f.paths
	for _, name := range p {
		if strings.ContainsAny(name, "*?#|@") {
			return fmt.Errorf("path: %q must name one value, without wildcards", text)
		}
		if at = at.member([]byte(name)); at.ignored {
			return fmt.Errorf("path: %q is covered by the facet's setting `ignore`, so a change would not be noticed", text)
		}
	}
	if !at.kept {
		return fmt.Errorf("path: %q is not covered by the facet's setting `select`, so this value is not stored", text)
	}
	return nil
}

// circle returns the facets from `name` through aliases back to `name`, or nil. `path` has the
// facets on the way to `name`.
func (g aliasGraph) circle(name string, path []string) []string {
	if len(path) > 0 && path[0] == name {
		return path
	}
	if f, known := g[name]; known && !slices.Contains(path, name) {
		for _, a := range f.aliases {
			if circle := g.circle(a.From, append(slices.Clone(path), name)); circle != nil {
				return circle
			}
		}
	}
	return nil
}
