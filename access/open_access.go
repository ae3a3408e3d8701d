package access

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// unauthenticatedPrefix stands before the address of a client whom nobody asked who it is: in an
// audit it must not look as if it had shown it.
const unauthenticatedPrefix = "unauthenticated@"

// checkOpenRequest returns the problem of a request that a service which asks nobody does not
// answer. Whoever reaches it may do all, and the browsers of those who do reach
// it call what any page tells them to:
//   - a page whose name was made to lead here (DNS rebinding) is of one origin
//     with the service, and gives itself away by that name alone;
//   - any other page can't read the answer, but an image or a no-cors fetch is
//     enough to spend the upstream's budget.
//
// A client that is not a browser sends none of these headers and is admitted.
//
// Under access.require: auto the service is open only because this machine alone reaches
// it. A forwarded request comes from elsewhere, so it is refused.
func (c Config) checkOpenRequest(r *http.Request) error {
	if c.Require == Auto && Forwarded(r.Header) {
		return forwarded()
	}
	if !c.isOwnHost(r.Host) {
		return unknownHost()
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

// clientAddressHeaders are the headers in which proxies and content delivery networks
// pass on the client's address, besides X-Forwarded-*.
var clientAddressHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Envoy-External-Address"}

// Forwarded reports whether the headers show that a proxy forwarded the request, so that
// the connection's address says nothing about the client. It can't recognise a proxy
// that adds no header.
func Forwarded(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(clientAddressHeaders, name) {
			return true
		}
	}
	return false
}

// isOwnHost reports whether the service is called by that name.
func (c Config) isOwnHost(host string) bool {
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
