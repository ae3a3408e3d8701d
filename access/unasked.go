package access

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// unasked stands before the address of a client whom nobody asked who it is: in an
// audit it must not look as if it had shown it.
const unasked = "unauthenticated@"

// admit returns the problem of a request that a service which asks nobody does not
// answer. Whoever reaches it may do all, and the browsers of those who do reach
// it call what any page tells them to:
//   - a page whose name was made to lead here (DNS rebinding) is of one origin
//     with the service, and gives itself away by that name alone;
//   - any other page can't read the answer, but an image or a no-cors fetch is
//     enough to spend the upstream's budget.
//
// What is no browser sends none of the headers and passes.
func (c Config) admit(r *http.Request) error {
	if !c.called(r.Host) {
		return misdirected()
	}
	listed := false
	for _, origin := range r.Header.Values("Origin") {
		if slices.Contains(c.AllowedOrigins, origin) {
			listed = true // its pages are of another site, and meant
		} else if !ownOrigin(origin, r.Host) {
			return crossSite()
		}
	}
	if listed {
		return nil
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site == "cross-site" || site == "same-site" {
			return crossSite()
		}
	}
	return nil
}

// called reports whether the service is called by that name.
func (c Config) called(host string) bool {
	if host == "" || Loopback(host) {
		return true
	}
	name := strings.ToLower(hostOf(host))
	ip, err := netip.ParseAddr(name)
	return slices.ContainsFunc(c.Hosts, func(h string) bool {
		if known, no := netip.ParseAddr(h); err == nil && no == nil {
			return known == ip
		}
		return h == anyHost || h == name
	})
}

func ownOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
