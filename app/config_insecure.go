package app

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/freshet/freshet/access"
)

// checkInsecure returns an error if the source would send a credential to another machine
// unencrypted, and the source's setting "insecure" does not allow this.
func (s SourceConfig) checkInsecure() error {
	for _, base := range baseURLsOf(s.Config) {
		u, err := url.Parse(base.url)
		if err != nil || u.Scheme != "http" || access.Loopback(u.Host) || s.Insecure || !s.sendsCredential() {
			continue // an invalid URL is reported by source.New
		}
		return fmt.Errorf("%s: the source would send its credential unencrypted over http; use https, or set insecure: true if the network to the upstream is trusted", base.setting)
	}
	return nil
}

// sendsCredential reports whether the source's calls have a credential: a configured one, or an
// Authorization, Proxy-Authorization or Cookie header.
func (s SourceConfig) sendsCredential() bool {
	if len(renewing(s)) > 0 || slices.ContainsFunc(secretRefs(s.Config), func(p secretRef) bool { return p.env != "" || p.file != "" }) {
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
