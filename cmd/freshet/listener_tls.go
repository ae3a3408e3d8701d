package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// ListenerTLSConfig secures a listener. Without CertFile it speaks plain HTTP. The
// files are read again when they change, for the connections that begin from then on.
type ListenerTLSConfig struct {
	// CertFile holds the certificate and its chain up to the authority, KeyFile the
	// private key, both as PEM.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ClientCAFile holds the authorities of client certificates, as PEM; empty: no
	// client is asked for a certificate.
	ClientCAFile string `yaml:"clientCAFile"`
	// ClientAuth is require, which is the default, or request: a client may have no
	// certificate, and one that it has must be of those authorities. A certificate
	// opens the connection, and stands in for no token.
	ClientAuth string `yaml:"clientAuth"`
}

// What ListenerTLSConfig.ClientAuth may be.
const (
	requestCertificate = "request"
	requireCertificate = "require"
)

func (c ListenerTLSConfig) enabled() bool { return c.CertFile != "" }

// requiresClientCert reports whether every client must have a certificate.
func (c ListenerTLSConfig) requiresClientCert() bool {
	return c.ClientCAFile != "" && c.ClientAuth != requestCertificate
}

// check returns all mistakes that can be seen without reading the files. Each begins
// with the setting's path below the listener's tls.
func (c ListenerTLSConfig) check() error {
	var errs []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("certFile: certFile and keyFile belong together; set both or neither"))
	}
	if c.ClientCAFile != "" && !c.enabled() {
		errs = append(errs, errors.New("clientCAFile: client certificates need TLS; set certFile and keyFile too"))
	}
	switch c.ClientAuth {
	case "":
	case requestCertificate, requireCertificate:
		if c.ClientCAFile == "" {
			errs = append(errs, errors.New("clientAuth: set clientCAFile too, which holds the authorities of client certificates"))
		}
	default:
		errs = append(errs, fmt.Errorf("clientAuth: %q must be request or require", c.ClientAuth))
	}
	return errors.Join(errs...)
}

// certificateReloadInterval is how often the files are read again at most.
const certificateReloadInterval = time.Second

// certificateReloader are the files of a listener, as they were read last. Its methods may
// be called concurrently.
type certificateReloader struct {
	setting string // as in query.tls
	config  ListenerTLSConfig
	// probes: every client may connect, since the handler asks for the certificate
	// (certified) and answers probes without one.
	probes bool
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	at      time.Time // of the last look
	read    [3][]byte
	current *tls.Config
	failing bool
}

// loadCertificates reads the files of a listener; nil if it speaks plain HTTP.
func loadCertificates(setting string, config ListenerTLSConfig, probes bool) (*certificateReloader, error) {
	if !config.enabled() {
		return nil, nil //nolint:nilnil // plain HTTP
	}
	c := &certificateReloader{setting: setting, config: config, probes: probes, log: slog.New(slog.DiscardHandler), now: time.Now}
	if _, err := c.load(); err != nil {
		return nil, fmt.Errorf("%s.%w", setting, err)
	}
	c.at = c.now()
	return c, nil
}

// load reads the files and, if they have changed, uses them from now on.
func (c *certificateReloader) load() (changed bool, err error) {
	var read [3][]byte
	for i, f := range []struct{ setting, name string }{{"certFile", c.config.CertFile}, {"keyFile", c.config.KeyFile}, {"clientCAFile", c.config.ClientCAFile}} {
		if f.name == "" {
			continue
		}
		if read[i], err = os.ReadFile(f.name); err != nil {
			return false, fmt.Errorf("%s: %w", f.setting, err)
		}
	}
	if c.current != nil && bytes.Equal(read[0], c.read[0]) && bytes.Equal(read[1], c.read[1]) && bytes.Equal(read[2], c.read[2]) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(read[0], read[1])
	if err != nil {
		return false, fmt.Errorf("certFile: %s and %s: %w", c.config.CertFile, c.config.KeyFile, err)
	}
	next := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if c.config.ClientCAFile != "" {
		next.ClientCAs = x509.NewCertPool()
		if !next.ClientCAs.AppendCertsFromPEM(read[2]) {
			return false, fmt.Errorf("clientCAFile: %s holds no certificate", c.config.ClientCAFile)
		}
		next.ClientAuth = tls.VerifyClientCertIfGiven
		if c.config.requiresClientCert() && !c.probes {
			next.ClientAuth = tls.RequireAndVerifyClientCert
		}
		// A session that is resumed would outlive the authority that admitted it.
		next.SessionTicketsDisabled = true
	}
	c.read, c.current = read, next
	return true, nil
}

// configForClient returns the settings of a connection that begins. Files that can't be
// used change nothing: they may be in the middle of being written.
func (c *certificateReloader) configForClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.at) >= certificateReloadInterval {
		c.at = now
		changed, err := c.load()
		switch {
		case err != nil && !c.failing:
			c.log.Warn("certificate files cannot be used; the certificate stays as it was", "setting", c.setting, "err", err)
		case err == nil && (changed || c.failing):
			c.log.Info("certificate files were read", "setting", c.setting, "changed", changed)
		}
		c.failing = err != nil
	}
	return c.current, nil
}

// boundListener is an address that was taken, and how connections to it are secured.
type boundListener struct {
	net.Listener
	certificates *certificateReloader // nil: they are not
}

// bind takes an address and reads the files of its TLS, or says what to change. The
// setting is the listener's, as in query.
func bind(ctx context.Context, address, setting, flag string, config ListenerTLSConfig, probes bool) (*boundListener, error) {
	c, err := loadCertificates(setting+".tls", config, probes)
	if err != nil {
		return nil, err
	}
	l, err := listen(ctx, address, setting+".listen", flag)
	if err != nil {
		return nil, err
	}
	return &boundListener{l, c}, nil
}

// listener returns the listener of encrypted connections, or of plain ones if there is
// no certificate. HTTP/2 is offered on the former.
func (b *boundListener) listener(log *slog.Logger) net.Listener {
	if b.certificates == nil {
		return b.Listener
	}
	b.certificates.log = log
	return tls.NewListener(b.Listener, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: b.certificates.configForClient})
}

// requireClientCert answers clients that have shown a certificate, and any other client only
// whether the process is alive and ready: the kubelet and load balancers have none.
func (c ListenerTLSConfig) requireClientCert(next http.Handler) http.Handler {
	if !c.requiresClientCert() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if (r.TLS == nil || len(r.TLS.VerifiedChains) == 0) && r.URL.Path != "/livez" && r.URL.Path != "/readyz" {
			http.Error(w, "a client certificate is required here; see ops.tls.clientCAFile", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
