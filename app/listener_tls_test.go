package app

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// secureOps is a TLS listener of health and metrics.
type secureOps struct {
	*testing.T
	base  string
	clock atomic.Int64 // elapsed seconds of the reloader's clock
	notes logBuffer
}

func startSecureOps(t *testing.T, config ListenerTLSConfig) *secureOps {
	t.Helper()
	s := &secureOps{T: t}
	b, err := OpsConfig{Listen: "127.0.0.1:0", TLS: config}.bind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.serve(b, config.requireClientCert(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })))
	return s
}

func (s *secureOps) serve(b *boundListener, handler http.Handler) {
	s.base = "https://" + b.Addr().String()
	began := time.Now()
	b.certificates.now = func() time.Time { return began.Add(time.Duration(s.clock.Load()) * time.Second) }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	log := slog.New(slog.NewJSONHandler(&s.notes, nil))
	l := b.listener(log)
	go func() { ended <- serveOps(ctx, l, handler, log) }()
	s.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.Error(err)
		}
	})
}

// reached holds the status of the response that a client received, and the HTTP version and the TLS
// state of the connection.
type reached struct {
	status int
	proto  int // HTTP major version
	tls    *tls.ConnectionState
}

// get requests a path with a client.
func (s *secureOps) get(client *http.Client, path string) (reached, error) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.base+path, http.NoBody)
	if err != nil {
		s.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return reached{}, err
	}
	_ = resp.Body.Close()
	return reached{resp.StatusCode, resp.ProtoMajor, resp.TLS}, nil
}

// serial returns the serial number of the server certificate that a client sees.
func (s *secureOps) serial(client *http.Client) int64 {
	s.Helper()
	resp, err := s.get(client, "/livez")
	if err != nil {
		s.Fatal(err)
	}
	return resp.tls.PeerCertificates[0].SerialNumber.Int64()
}

// newTLSClient returns a client that shares no connections with other clients.
func newTLSClient(t *testing.T, config *tls.Config) *http.Client {
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestListenerTLS_UsesChangedFilesForNewConnections(t *testing.T) {
	ca := newAuthority(t, "ca")
	certFile, keyFile, first := ca.issue("server")
	s := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile})
	kept := newTLSClient(t, ca.trusting())
	if got := s.serial(kept); got != first {
		t.Fatalf("at start: got the certificate %d, want %d", got, first)
	}

	_, _, second := ca.issue("server")
	if got := s.serial(newTLSClient(t, ca.trusting())); got != first {
		t.Errorf("within the interval: got the certificate %d, want %d", got, first)
	}
	s.clock.Add(1)
	if got := s.serial(newTLSClient(t, ca.trusting())); got != second {
		t.Errorf("a new connection: got the certificate %d, want %d", got, second)
	}
	if got := s.serial(kept); got != first {
		t.Errorf("the connection from before: got the certificate %d, want %d: it was dropped", got, first)
	}
}

func TestListenerTLS_KeepsItsCertificateWhileFilesAreUnusable(t *testing.T) {
	ca := newAuthority(t, "ca")
	certFile, keyFile, first := ca.issue("server")
	s := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile})
	for _, spoil := range []func() error{
		func() error { return os.WriteFile(certFile, []byte("-----BEGIN CERT"), 0o600) },
		func() error { return os.Remove(keyFile) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		s.clock.Add(1)
		if got := s.serial(newTLSClient(t, ca.trusting())); got != first {
			t.Errorf("got the certificate %d, want %d", got, first)
		}
	}
	if got := len(s.notes.lines(t, "certificate files unusable; the old certificate stays in use")); got != 1 {
		t.Errorf("got %d warnings, want 1", got)
	}
	_, _, second := ca.issue("server")
	s.clock.Add(1)
	if got := s.serial(newTLSClient(t, ca.trusting())); got != second {
		t.Errorf("after the repair: got the certificate %d, want %d", got, second)
	}
	if got := len(s.notes.lines(t, "certificate files changed")); got != 1 {
		t.Errorf("got %d messages of the repair, want 1", got)
	}
}

func TestListenerTLS_SpeaksHTTP2AndNothingBelowTLS12(t *testing.T) {
	ca := newAuthority(t, "ca")
	certFile, keyFile, _ := ca.issue("server")
	s := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile})
	resp, err := s.get(newTLSClient(t, ca.trusting()), "/livez")
	if err != nil {
		t.Fatal(err)
	}
	if resp.proto != 2 || resp.tls.Version < tls.VersionTLS12 {
		t.Errorf("got HTTP/%d over %s, want HTTP/2 over TLS 1.2 or later", resp.proto, tls.VersionName(resp.tls.Version))
	}
	old := ca.trusting()
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	if _, err := s.get(newTLSClient(t, old), "/livez"); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: got %v, want an error of the protocol version", err)
	}
}

func TestListenerTLS_AdmitsClientsByTheirCertificate(t *testing.T) {
	ca, clients, strangers := newAuthority(t, "ca"), newAuthority(t, "clients"), newAuthority(t, "strangers")
	certFile, keyFile, _ := ca.issue("server")
	own, foreign := clients.pair("own"), strangers.pair("foreign")
	for _, c := range []struct {
		auth, shown string
		pair        []tls.Certificate
		admitted    bool
	}{
		{"", "none", nil, false},
		{"", "its own", []tls.Certificate{own}, true},
		{requireCertificate, "none", nil, false},
		{requireCertificate, "its own", []tls.Certificate{own}, true},
		{requireCertificate, "a stranger's", []tls.Certificate{foreign}, false},
		{requestCertificate, "none", nil, true},
		{requestCertificate, "its own", []tls.Certificate{own}, true},
		{requestCertificate, "a stranger's", []tls.Certificate{foreign}, false},
	} {
		config := ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile, ClientCAFile: clients.file, ClientAuth: c.auth}
		s := &secureOps{T: t}
		b, err := bind(t.Context(), "127.0.0.1:0", "query", "--listen", config, false)
		if err != nil {
			t.Fatal(err)
		}
		s.serve(b, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		trusting := ca.trusting()
		// A standard client sends its certificate only if the server accepts the certificate's
		// authority. This client always sends its certificate.
		trusting.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(c.pair) == 0 {
				return &tls.Certificate{}, nil
			}
			return &c.pair[0], nil
		}
		if _, err := s.get(newTLSClient(t, trusting), "/livez"); (err == nil) != c.admitted {
			t.Errorf("clientAuth %q, certificate %s: got %v, want admitted %v", c.auth, c.shown, err, c.admitted)
		}
	}
}

func TestListenerTLS_ForgetsAnAuthorityThatWasReplaced(t *testing.T) {
	ca, before, after := newAuthority(t, "ca"), newAuthority(t, "before"), newAuthority(t, "after")
	certFile, keyFile, _ := ca.issue("server")
	s := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile, ClientCAFile: before.file, ClientAuth: requestCertificate})
	config := ca.trusting(before.pair("client"))
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &config.Certificates[0], nil }
	if _, err := s.get(newTLSClient(t, config), "/livez"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(after.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(before.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	s.clock.Add(1)
	if _, err := s.get(newTLSClient(t, config), "/livez"); err == nil {
		t.Error("got no error, want one: the session of a certificate of the former authority was resumed")
	}
}

func TestOpsTLS_AnswersProbesAloneWithoutACertificate(t *testing.T) {
	ca, clients := newAuthority(t, "ca"), newAuthority(t, "clients")
	certFile, keyFile, _ := ca.issue("server")
	s := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile, ClientCAFile: clients.file})
	probe, prometheus := newTLSClient(t, ca.trusting()), newTLSClient(t, ca.trusting(clients.pair("prometheus")))
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/healthz": 403, "/metrics": 403} {
		if resp, err := s.get(probe, path); err != nil || resp.status != want {
			t.Errorf("%s without a certificate: got %d, %v, want %d", path, resp.status, err, want)
		}
		if resp, err := s.get(prometheus, path); err != nil || resp.status != http.StatusOK {
			t.Errorf("%s with a certificate: got %d, %v, want 200", path, resp.status, err)
		}
	}
}

func TestListenerTLS_FailsAtStartOnFilesItCannotUse(t *testing.T) {
	ca := newAuthority(t, "ca")
	certFile, keyFile, _ := ca.issue("server")
	_, otherKey, _ := ca.issue("other")
	for want, config := range map[string]ListenerTLSConfig{
		"query.tls.certFile: open /no/such/file":           {CertFile: "/no/such/file", KeyFile: keyFile},
		"query.tls.keyFile: open /no/such/file":            {CertFile: certFile, KeyFile: "/no/such/file"},
		"private key does not match":                       {CertFile: certFile, KeyFile: otherKey},
		"query.tls.clientCAFile: open /no/such/file":       {CertFile: certFile, KeyFile: keyFile, ClientCAFile: "/no/such/file"},
		"query.tls.clientCAFile: " + keyFile + " holds no": {CertFile: certFile, KeyFile: keyFile, ClientCAFile: keyFile},
	} {
		if _, err := bind(t.Context(), "127.0.0.1:0", "query", "--listen", config, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestConfig_ChecksTheListenersTLS(t *testing.T) {
	for text, want := range map[string]string{
		"query: {tls: {certFile: a}}":                                                   "query.tls.certFile: certFile and keyFile belong together",
		"ops: {tls: {keyFile: a}}":                                                      "ops.tls.certFile: certFile and keyFile belong together",
		"query: {tls: {clientCAFile: a}}":                                               "query.tls.clientCAFile: client certificates need TLS",
		"query: {tls: {certFile: a, keyFile: b, clientAuth: require}}":                  "query.tls.clientAuth: set clientCAFile too",
		"query: {tls: {certFile: a, keyFile: b, clientCAFile: c, clientAuth: yes}}":     `must be request or require`,
		"query: {tls: {certFile: a, keyFile: b, clientCAFile: c, clientAuth: request}}": "",
		"ops: {tls: {certFile: a, keyFile: b}}":                                         "",
	} {
		_, err := loadConfig(write(t, minimal+text+"\n"), nil, OptionalSources)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
