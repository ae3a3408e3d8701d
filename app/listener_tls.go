package app

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

	"github.com/freshet/freshet/observe"
)

// ListenerTLSConfig configures TLS of a listener. Changed certificate files are read again, and apply
// to new connections.
type ListenerTLSConfig struct {
	// CertFile is the path of the certificate with its chain (PEM). Without it the listener serves plain
	// HTTP.
	CertFile string `yaml:"certFile"`
	// KeyFile is the path of the private key (PEM). It is required with a certificate.
	KeyFile string `yaml:"keyFile"`
	// ClientCAFile is the path of the certificates (PEM) of the authorities that may sign client
	// certificates. If it is empty, client certificates are not requested.
	ClientCAFile string `yaml:"clientCAFile"`
	// ClientAuth says whether a client must send a certificate. With require (the default), clients
	// without a certificate are rejected. With request, a client may have no certificate, but a
	// certificate that it sends must be valid. A certificate admits only the connection: each request
	// still needs a token.
	ClientAuth string `yaml:"clientAuth" enum:",request,require"`
}

// Values of ListenerTLSConfig.ClientAuth.
const (
	requestCertificate = "request"
	requireCertificate = "require"
)

func (c ListenerTLSConfig) enabled() bool { return c.CertFile != "" }

// requiresClientCert reports whether every client must send a certificate.
func (c ListenerTLSConfig) requiresClientCert() bool {
	return c.ClientCAFile != "" && c.ClientAuth != requestCertificate
}

// check returns all errors that can be found without reading the files. Each error begins with the
// setting's path below tls.
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

// certificateReloadInterval is the minimum interval between two reads of the certificate files.
const certificateReloadInterval = time.Second

// certificateReloader holds the TLS settings of a listener and reloads them when the files change.
// Its methods may be called concurrently.
type certificateReloader struct {
	setting string // path of the settings, such as query.tls
	config  ListenerTLSConfig
	// probes, if true, lets clients without a certificate connect, so that health probes work.
	// requireClientCert then rejects all other requests without a certificate.
	probes bool
	log    *slog.Logger
	now    func() time.Time

	mu         sync.Mutex
	at         time.Time // time of the last read of the certificate files
	read       [3][]byte
	current    *tls.Config
	conditions observe.Conditions
}

// loadCertificates reads the files of a listener. It returns nil for plain HTTP.
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

// load reads the certificate files and, if they have changed, builds new TLS settings.
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
		// A resumed TLS session skips the verification of the client certificate. A client could thus
		// connect although its certificate's authority has been removed from the file.
		next.SessionTicketsDisabled = true
	}
	c.read, c.current = read, next
	return true, nil
}

// configForClient returns the TLS settings for a new connection. If the files are invalid, the last
// settings stay in force, because another process may be writing the files.
func (c *certificateReloader) configForClient(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Sub(c.at) >= certificateReloadInterval {
		c.at = now
		changed, err := c.load()
		c.conditions.Record(c.log, observe.Condition{
			Event: "certificate_unusable", Failing: "certificate files unusable; the old certificate stays in use", Recovered: "loading the certificate files works again", Attr: "setting", Value: c.setting,
		}, err)
		if changed {
			c.log.Info("certificate files changed", "setting", c.setting)
		}
	}
	return c.current, nil
}

// boundListener is a bound address with its TLS settings.
type boundListener struct {
	net.Listener
	certificates *certificateReloader // TLS settings of the listener; nil: plain HTTP
}

// bind reads the TLS files and binds an address. setting is the path of the listener's settings,
// such as query. Errors name this path and the flag that sets the address.
func bind(ctx context.Context, address, setting, flag string, config ListenerTLSConfig, probes bool) (*boundListener, error) {
	c, err := loadCertificates(setting+".tls", config, probes)
	if err != nil {
		return nil, err
	}
	l, err := Listen(ctx, address, setting+".listen", flag)
	if err != nil {
		return nil, err
	}
	return &boundListener{l, c}, nil
}

// listener returns a listener that accepts TLS connections, with HTTP/2. If no certificate is
// configured, it accepts plain connections.
func (b *boundListener) listener(log *slog.Logger) net.Listener {
	if b.certificates == nil {
		return b.Listener
	}
	b.certificates.log = log
	return tls.NewListener(b.Listener, &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: b.certificates.configForClient})
}

// requireClientCert rejects requests without a verified client certificate, except for /livez and
// /readyz: the kubelet and load balancers have no certificate.
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
