package source

import (
	"fmt"
	"maps"
	"slices"

	"github.com/freshet/freshet/source/derived"
)

// derivedUse is a derived facet that reads the items of a collection facet.
type derivedUse struct {
	facet  string
	config *derived.Config
	input  derived.Input
}

// Computed returns the derived entities that must be computed again when the entity of this facet with
// the given key has changed.
func (f Facet) Computed(key string) (all []derived.Target) {
	for _, u := range f.derivedUses {
		if to, ok := u.input.KeyOf(key); ok && !u.config.IsAll(to) {
			all = append(all, derived.Target{Facet: u.facet, Key: to, Every: u.config.Every})
		}
		if u.config.All != nil && !u.config.Mergeable() {
			all = append(all, derived.Target{Facet: u.facet, Key: derived.AllKey, Every: u.config.All.Every})
		}
	}
	if d := f.Derived; d != nil && d.All != nil && d.Mergeable() && !d.IsAll(key) {
		all = append(all, derived.Target{Facet: f.derivedName, Key: derived.AllKey, Every: d.All.Every})
	}
	return all
}

// checkDerived returns an error if the facet has both the setting derived and a setting that has no
// effect with it.
func (f Facet) checkDerived() error {
	for _, other := range []struct {
		name string
		set  bool
	}{
		{"documents", len(f.Documents) > 0},
		{"collection", f.Collection != nil},
		{"raw", f.Raw != nil},
		{"static", f.Static != nil},
		{"links", f.Links != nil},
		{"immutable", f.Immutable},
		{"conditional", f.Conditional},
		{"params", len(f.Params) > 0},
		{"select", len(f.Select) > 0},
		{"ignore", len(f.Ignore) > 0},
		{"shrinkGuard", f.ShrinkGuard > 0},
	} {
		if other.set {
			return fmt.Errorf("%s: not allowed with derived, because the content is computed and not fetched; remove it", other.name)
		}
	}
	return nil
}

// compileDerived compiles the setting derived of each facet, and returns all errors.
func compileDerived(facets map[string]*compiledFacet) (errs []error) {
	for _, name := range slices.Sorted(maps.Keys(facets)) {
		f := facets[name]
		if f.Derived == nil {
			continue
		}
		fail := func(err error) { errs = append(errs, fmt.Errorf("facets.%s.derived.%w", name, err)) }
		compiled, err := f.Derived.Compile(func(collection string) (string, bool) {
			in, known := facets[collection]
			if !known || in.Collection == nil {
				return "", false
			}
			return in.KeyPattern, true
		})
		if err != nil {
			fail(err)
			continue
		}
		f.Derived, f.derivedName = compiled, name
		f.version = f.ExtractVersion()
		for _, over := range slices.Sorted(maps.Keys(compiled.Over)) {
			in := facets[over]
			if in.KeyFold != f.KeyFold {
				fail(fmt.Errorf("over.%s: keyFold of %s is %q and of %s %q; both facets must have the same keyFold, because the keys of one come from the keys of the other", over, over, in.KeyFold, name, f.KeyFold))
			}
			in.derivedUses = append(in.derivedUses, derivedUse{name, compiled, compiled.Over[over]})
		}
	}
	return errs
}
