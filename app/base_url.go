package app

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/freshet/freshet/source"
)

// baseURL is a base URL of a source or of one of its documents.
type baseURL struct {
	setting string // path of the setting below the source
	url     string
}

// documentBaseURL returns the path of a document's setting baseURL within the configuration of its
// source.
func documentBaseURL(facet, document string) string {
	return "facets." + facet + ".documents." + document + ".baseURL"
}

// baseURLsOf returns the base URL of the source, and then the base URLs of its documents.
func baseURLsOf(s source.Config) []baseURL {
	all := []baseURL{{"baseURL", s.BaseURL}}
	for _, facet := range slices.Sorted(maps.Keys(s.Facets)) {
		documents := s.Facets[facet].Documents
		for _, name := range slices.Sorted(maps.Keys(documents)) {
			if base := documents[name].BaseURL; base != "" {
				all = append(all, baseURL{documentBaseURL(facet, name), base})
			}
		}
	}
	return all
}

// replaceBaseURLs calls the function `change` for the base URLs of the source and of its documents.
func replaceBaseURLs(s *source.Config, change func(base *url.URL)) error {
	replaced := func(setting, address string) (string, error) {
		base, err := url.Parse(address)
		if err != nil {
			return "", fmt.Errorf("%s: %w", setting, err)
		}
		change(base)
		return base.String(), nil
	}
	var errs []error
	var err error
	s.BaseURL, err = replaced("baseURL", s.BaseURL)
	errs = append(errs, err)
	s.Facets = maps.Clone(s.Facets)
	for facet, f := range s.Facets {
		f.Documents = maps.Clone(f.Documents)
		for name, d := range f.Documents {
			if d.BaseURL != "" {
				d.BaseURL, err = replaced(documentBaseURL(facet, name), d.BaseURL)
				errs, f.Documents[name] = append(errs, err), d
			}
		}
		s.Facets[facet] = f
	}
	return errors.Join(errs...)
}

// hostsOf returns the hosts that the source calls, including the hosts of its token endpoints.
func hostsOf(s SourceConfig) (all []string) {
	for _, base := range baseURLsOf(s.Config) {
		all = append(all, hostOf(base.url))
	}
	for _, c := range renewing(s) {
		all = append(all, hostOf(tokenURL(c.Token)))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hostOf returns the host of a URL, or "" if the URL is invalid.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}
