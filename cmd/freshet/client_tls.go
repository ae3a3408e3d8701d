package main

import (
	"crypto/tls"
	"fmt"
	"net"
)

// clientTLS returns how a command checks the certificate of a query service and shows
// its own: by FRESHET_CA_FILE, FRESHET_CERT_FILE and FRESHET_KEY_FILE, all PEM.
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

// dialAddress returns an address that can be called: one that listens everywhere is
// called on this machine.
func dialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || (ip != nil && ip.IsUnspecified())) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return address
}

// dialURL returns the address by which this machine calls a listener: a URL if the
// listener is secured, and host:port otherwise.
func (c ListenerTLSConfig) dialURL(address string) string {
	if address = dialAddress(address); c.enabled() {
		return "https://" + address
	}
	return address
}
