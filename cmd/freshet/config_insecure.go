package main

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/freshet/freshet/access"
)

// checkInsecure returns an error if a credential would travel to another machine in
// clear text, unless the source says that this is meant.
func (s SourceConfig) checkInsecure() error {
	u, err := url.Parse(s.BaseURL)
	if err != nil || u.Scheme != "http" || access.Loopback(u.Host) || s.Insecure || !s.sendsCredential() {
		return nil //nolint:nilerr // a URL that cannot be read is another mistake
	}
	return errors.New("baseURL: the source's credential would travel over http in clear text; use https, or set insecure: true if the network up to the upstream is trusted")
}

// sendsCredential reports whether the source's calls carry a credential: its own, or
// one in a header whose name the HTTP standard reserves for credentials.
func (s SourceConfig) sendsCredential() bool {
	if slices.ContainsFunc(secretRefs(s.Config), func(p secretRef) bool { return p.env != "" || p.file != "" }) {
		return true
	}
	names := slices.Collect(maps.Keys(s.Headers))
	for _, f := range s.Facets {
		for _, d := range f.Documents {
			names = slices.AppendSeq(names, maps.Keys(d.Headers))
		}
	}
	return slices.ContainsFunc(names, func(name string) bool {
		name = http.CanonicalHeaderKey(name)
		return name == "Authorization" || name == "Proxy-Authorization" || name == "Cookie"
	})
}
