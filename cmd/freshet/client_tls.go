package main

import (
	"crypto/tls"
	"fmt"
	"net"
)

// clientTLS returns the TLS settings for calls to a query service. The certificate authority comes
// from FRESHET_CA_FILE, and the client certificate from FRESHET_CERT_FILE and FRESHET_KEY_FILE (all
// PEM).
func (p *program) clientTLS() (*tls.Config, error) {
	c := TLSConfig{
		Enabled: true, CAFile: lookup(p.env, "FRESHET_CA_FILE"),
		CertFile: lookup(p.env, "FRESHET_CERT_FILE"), KeyFile: lookup(p.env, "FRESHET_KEY_FILE"),
	}
	config, err := c.newTLSConfig()
	if err != nil {
		return nil, fmt.Errorf("FRESHET_CA_FILE, FRESHET_CERT_FILE, FRESHET_KEY_FILE: %w", err)
	}
	return config, nil
}

// dialAddress returns the address to call for a listen address. An address for all interfaces
// becomes a loopback address.
func dialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || (ip != nil && ip.IsUnspecified())) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// dialURL returns the address at which this machine can call a listener: an https URL if the
// listener has TLS, and host:port otherwise.
func (c ListenerTLSConfig) dialURL(address string) string {
	if address = dialAddress(address); c.enabled() {
		return "https://" + address
	}
	return address
}
