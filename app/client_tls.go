package app

import (
	"crypto/tls"
	"fmt"
)

// ClientTLS returns the TLS settings for calls to a query service. The certificate authority comes
// from FRESHET_CA_FILE, and the client certificate from FRESHET_CERT_FILE and FRESHET_KEY_FILE (all
// PEM).
func (p *Process) ClientTLS() (*tls.Config, error) {
	c := TLSConfig{
		Enabled: true, CAFile: Lookup(p.Env, "FRESHET_CA_FILE"),
		CertFile: Lookup(p.Env, "FRESHET_CERT_FILE"), KeyFile: Lookup(p.Env, "FRESHET_KEY_FILE"),
	}
	config, err := c.newTLSConfig()
	if err != nil {
		return nil, fmt.Errorf("FRESHET_CA_FILE, FRESHET_CERT_FILE, FRESHET_KEY_FILE: %w", err)
	}
	return config, nil
}

// DialURL returns the address at which this machine can call a listener: an https URL if the
// listener has TLS, and host:port otherwise.
func (c ListenerTLSConfig) DialURL(address string) string {
	if c.enabled() {
		return "https://" + address
	}
	return address
}
