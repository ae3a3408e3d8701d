package source

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// keyPattern is a compiled Facet.KeyPattern.
type keyPattern struct {
	expr   *regexp.Regexp
	groups []string // names of the named groups, in the order of the pattern
	index  []int    // for each element of groups, the index of its submatch in expr
}

func compileKeyPattern(text string) (keyPattern, error) {
	if text == "" {
		return keyPattern{}, errors.New("\"\" matches no key; remove the setting to use the default, or write a pattern such as \"[0-9]{1,20}\"")
	}
	if _, err := regexp.Compile(text); err != nil { // compile text alone first, because an unbalanced parenthesis in it could close the group "(?:" below
		return keyPattern{}, fmt.Errorf("%q is not a regular expression: %w", text, err)
	}
	p := keyPattern{expr: regexp.MustCompile("^(?:" + text + ")$")}
	for i, name := range p.expr.SubexpNames() {
		switch {
		case name == "":
			continue
		case name == keyParam:
			return keyPattern{}, errors.New("a named group must not have the name `key`, because {key} is always the whole key; choose another name")
		case slices.Contains(p.groups, name):
			return keyPattern{}, fmt.Errorf("two groups have the name %s; give each group its own name", name)
		}
		p.groups, p.index = append(p.groups, name), append(p.index, i)
	}
	return p, nil
}

// match returns the values that a key provides, and false if the pattern does not match the whole
// key.
func (p keyPattern) match(key string) (keyValues, bool) {
	k := keyValues{key: key, names: p.groups}
	if len(p.groups) == 0 {
		return k, p.expr.MatchString(key)
	}
	found := p.expr.FindStringSubmatch(key)
	if found == nil {
		return k, false
	}
	for _, i := range p.index {
		k.values = append(k.values, found[i])
	}
	return k, true
}

// keyValues are the placeholder values that a key provides: {key} and the named groups.
type keyValues struct {
	key           string
	names, values []string // names and values of the named groups
}

// value returns the value of a placeholder, or "" if the key does not provide one.
func (k keyValues) value(name string) string {
	if name == keyParam {
		return k.key
	}
	if i := slices.Index(k.names, name); i >= 0 {
		return k.values[i]
	}
	return ""
}

// value returns the value of a placeholder. A value from the key takes precedence, so that the params
// of a request cannot change which entity is fetched.
func (f *compiledFacet) value(name string, k keyValues, params map[string]string) string {
	if v := k.value(name); v != "" || name == keyParam {
		return v
	}
	if v, ok := params[name]; ok {
		return v
	}
	if t, ok := f.params[name]; ok {
		return t.fill(k.value)
	}
	return ""
}

// CheckKey returns an error if the facet does not exist, or if no valid calls can be planned for the
// key: the key does not match the facet's KeyPattern, leaves a required group empty, or would change
// the structure of a path. The key must also be valid for each facet that the facet takes a param
// from. The rules for keys of all sources are in schemas.CheckKey.
func (s *Source) CheckKey(facet, key string) error {
	f, k, err := s.match(facet, key)
	if err == nil {
		for _, a := range f.aliases {
			if err := s.CheckKey(a.From, key); err != nil {
				return err
			}
		}
	}
	if err != nil || (!f.checksTargets && f.literalBytes+3*len(key)*f.placeholders <= maxTargetBytes) {
		return err
	}
	value := func(name string) string {
		if v := f.value(name, k, nil); v != "" {
			return v
		}
		return "x" // a placeholder for the param's value, which is registered with each entity and is unknown here
	}
	for _, d := range f.documents {
		if _, err := d.target.fill(value); err != nil {
			return fmt.Errorf("the key is invalid for document %s: %w", d.name, err)
		}
	}
	return nil
}

// match returns the facet and the values that the key provides.
func (s *Source) match(facet, key string) (*compiledFacet, keyValues, error) {
	f, ok := s.facets[facet]
	if !ok {
		return nil, keyValues{}, fmt.Errorf("source %s has no facet %q; it has %s", s.name, facet, strings.Join(s.FacetNames(), ", "))
	}
	k, ok := f.key.match(key)
	if f.Derived.IsAll(key) {
		return f, keyValues{key: key}, nil
	}
	if !ok {
		return nil, keyValues{}, fmt.Errorf("the key does not match the keyPattern of %s/%s: %s", s.name, facet, f.KeyPattern)
	}
	for _, name := range f.requiredGroups {
		if k.value(name) == "" {
			return nil, keyValues{}, fmt.Errorf("the key leaves {%s} empty, and %s/%s has no default for it; its keyPattern is %s", name, s.name, facet, f.KeyPattern)
		}
	}
	return f, k, nil
}

// MissingParams returns the sorted names of the params that have no value: the facet's Params contains
// an empty value, the key has no group of that name, and `params` has no value either. Such an entity
// cannot be fetched. MissingParams returns nil if the facet does not exist or the key does not match.
func (s *Source) MissingParams(facet, key string, params map[string]string) []string {
	f, ok := s.facets[facet]
	if !ok || len(f.openParams) == 0 {
		return nil
	}
	k, ok := f.key.match(key)
	if !ok {
		return nil
	}
	var missing []string
	for _, name := range f.openParams {
		if k.value(name) == "" && params[name] == "" {
			missing = append(missing, name)
		}
	}
	return missing
}

// compileKeyUse records how the paths of the documents depend on the key.
func (f *compiledFacet) compileKeyUse() {
	used := map[string]bool{}
	for _, d := range f.documents {
		for _, name := range d.placeholders() {
			used[name] = true
		}
		literals, names := d.target.size()
		f.literalBytes, f.placeholders = max(f.literalBytes, literals), max(f.placeholders, names)
		for _, segment := range d.target.segments {
			// A segment that is the whole key needs no check, because schemas.CheckKey rejects the keys
			// ".", ".." and "". A segment with a literal character other than a dot needs none either.
			literal := strings.Join(segment.literals, "")
			isKey := len(segment.names) == 1 && literal == "" && f.isKey(segment.names[0])
			if segment.hasKeyPath() || (len(segment.names) > 0 && strings.Trim(literal, ".") == "" && !isKey) {
				f.checksTargets = true
			}
		}
	}
	for name, t := range f.params {
		for _, group := range t.placeholders() {
			used[group] = true
		}
		if f.Params[name] == (Param{}) {
			f.openParams = append(f.openParams, name)
		}
	}
	slices.Sort(f.openParams)
	f.names = slices.Compact(slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(f.params)), f.key.groups))))
	for _, name := range f.key.groups {
		if _, hasDefault := f.params[name]; used[name] && !hasDefault {
			f.requiredGroups = append(f.requiredGroups, name)
		}
	}
}

// isKey reports whether the value of a placeholder is the whole key, unless a request overrides it.
func (f *compiledFacet) isKey(name string) bool {
	return name == keyParam || (f.Params[name].Text == "{"+keyParam+"}" && !slices.Contains(f.key.groups, name))
}

// placeholders returns the names of all placeholders of the document.
func (d compiledDocument) placeholders() []string {
	names := slices.Concat(d.target.placeholders(), d.body.placeholders())
	for _, text := range d.headers {
		names = append(names, text.placeholders()...)
	}
	return names
}

// ProvidedParams returns the names of the placeholders that keys of the facet provide: the named
// groups of KeyPattern. It returns nil if KeyPattern is invalid.
func (f Facet) ProvidedParams() []string {
	p, err := compileKeyPattern(f.KeyPattern)
	if err != nil {
		return nil
	}
	return p.groups
}

// checkParamTemplate returns an error if a param's default uses a placeholder other than {key} and
// the groups of the facet's KeyPattern.
func (p keyPattern) checkParamTemplate(name string, t template) error {
	for _, used := range t.placeholders() {
		switch {
		case used == keyParam:
		case used == name:
			return fmt.Errorf("params.%s: must not use {%s} itself; {%s} is filled from the key, and this default applies if the key leaves it empty", name, used, used)
		case !slices.Contains(p.groups, used):
			return fmt.Errorf("params.%s: only {key} and named groups of keyPattern can be used here, not {%s}", name, used)
		}
	}
	return nil
}
