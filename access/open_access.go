package access

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// unauthenticatedPrefix is the start of the name of each client that did not authenticate. So an
// audit entry shows whether its client was authenticated.
const unauthenticatedPrefix = "unauthenticated@"

// checkOpenRequest checks a request to a service without authentication. Such a service accepts
// the requests of every client that can connect, and a browser on this machine sends the requests
// of any web page. Two attacks must fail:
//   - DNS rebinding: the host name of the attacker's page resolves to this service, so the browser
//     treats the page and the service as one origin. The request is rejected because of its Host
//     header.
//   - A page of another site can't read the response, but its images and no-cors fetches would use
//     up the upstream's quota. The request is rejected because of Origin and Sec-Fetch-Site.
//
// A client that is not a browser sends no Origin or Sec-Fetch-Site and is accepted.
//
// With access.require: auto the service is open only because it listens on loopback. A forwarded
// request comes from another machine, so it is rejected.
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
			listed = true // the setting allowedOrigins lists the site that sent the request
		} else if !isOwnOrigin(origin, r.Host) {
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

// clientAddressHeaders are headers, in addition to X-Forwarded-*, in which proxies and content
// delivery networks send the client's address.
var clientAddressHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Envoy-External-Address"}

// Forwarded reports whether a proxy forwarded the request, so that the connection's address is
// not the client's. A proxy that adds no header is not detected.
func Forwarded(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(clientAddressHeaders, name) {
			return true
		}
	}
	return false
}

// isOwnHost reports whether the host is an accepted name of the service.
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

func isOwnOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
