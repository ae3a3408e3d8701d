package source

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// compileLinks checks the setting links of one facet and sets its defaults. checkLinks checks it
// together with the other facets.
func (f *compiledFacet) compileLinks() error {
	if f.Links == nil {
		return nil
	}
	if f.Raw == nil {
		return errors.New("links: needs `raw`, because links are found in the bytes of one document; set `raw: {mediaType: application/xml}` or another media type")
	}
	compiled, err := f.Links.Compile()
	if err != nil {
		return fmt.Errorf("links.%w", err)
	}
	f.Links = &compiled
	return nil
}

// checkLinks returns an error for each setting links.facet that names no facet, or a facet whose
// entities can't be fetched if only their key is known.
func checkLinks(facets map[string]*compiledFacet) (errs []error) {
	names := slices.Sorted(maps.Keys(facets))
	for _, name := range names {
		l := facets[name].Links
		if l == nil {
			continue
		}
		target, known := facets[l.Facet]
		if !known {
			errs = append(errs, fmt.Errorf("facets.%s.links.facet: there is no facet %q; the facets are: %s", name, l.Facet, strings.Join(names, ", ")))
			continue
		}
		if target.Derived != nil {
			errs = append(errs, fmt.Errorf("facets.%s.links.facet: %s is derived, so changes of its inputs refresh it; name a facet with documents", name, l.Facet))
		}
		for _, param := range target.openParams {
			if !slices.Contains(target.key.groups, param) {
				errs = append(errs, fmt.Errorf("facets.%s.links.facet: keys of %s need a value for {%s}, and a link has none; give the param a default, or name a group of keyPattern %s", name, l.Facet, param, param))
			}
		}
	}
	return errs
}
