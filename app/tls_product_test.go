package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/freshet/freshet/client"
)

// secureQuery is a query service with TLS on embedded services.
type secureQuery struct {
	*testing.T
	base string
	ca   *authority
}

func startSecureQuery(t *testing.T) *secureQuery {
	t.Helper()
	s := &secureQuery{T: t, ca: newAuthority(t, "ca")}
	certFile, keyFile, _ := s.ca.issue("server")
	config, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	config.Query.TLS = ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile}
	p := NewProcess(nil, t.Output(), t.Output())
	background := newGroup(context.WithoutCancel(t.Context()))
	made, closeAll, err := p.startEmbedded(t.Context(), DevOptions{Upstream: "http://127.0.0.1:1"}, config, background)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	b, err := bind(t.Context(), "127.0.0.1:0", "query", "--listen", config.Query.TLS, false)
	if err != nil {
		t.Fatal(err)
	}
	foreground := newGroup(t.Context())
	foreground.run(func(ctx context.Context) error {
		return made.run(ctx, serving(b.listener(slog.New(slog.DiscardHandler))))
	})
	t.Cleanup(func() {
		if err := foreground.stop(); err != nil {
			t.Error(err)
		}
		if err := background.stop(); err != nil {
			t.Error(err)
		}
	})
	s.base = "https://" + b.Addr().String()
	return s
}

func TestQueryTLS_ServesReadsStreamsAndTheConsole(t *testing.T) {
	s := startSecureQuery(t)
	client := newTLSClient(t, s.ca.trusting())
	for _, path := range []string{"/livez", "/v1/nexon/character/somebody", "/console"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode >= 400 {
			t.Errorf("%s: got %s %s, want HTTP/2 and no error", path, resp.Proto, resp.Status)
		}
		if got, want := resp.Header.Get("Strict-Transport-Security"), "max-age=31536000"; got != want {
			t.Errorf("%s: got Strict-Transport-Security %q, want %q", path, got, want)
		}
	}

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/v1/nexon/character/somebody/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); resp.ProtoMajor != 2 || err != nil {
		t.Errorf("the stream: got %s, %q, %v, want a first line over HTTP/2", resp.Proto, line, err)
	}
}

func TestClientTLS_TrustsAPrivateAuthority(t *testing.T) {
	s := startSecureQuery(t)
	ask := func(env ...string) error {
		secured, err := NewProcess(env, io.Discard, io.Discard).ClientTLS()
		if err != nil {
			return err
		}
		transport := &http.Transport{TLSClientConfig: secured}
		defer transport.CloseIdleConnections()
		api, err := client.New(s.base, client.Options{Token: client.Token{Value: "a-token"}, Transport: transport, MaxRetries: -1})
		if err != nil {
			return err
		}
		r, err := api.Send(t.Context(), http.MethodGet, "/admin/v1/settings", nil)
		if err == nil && r.Code != http.StatusOK {
			err = r.Problem()
		}
		return err
	}
	if err := ask(); !errors.As(err, new(*tls.CertificateVerificationError)) {
		t.Errorf("without the authority: got %v, want a CertificateVerificationError", err)
	}
	if err := ask("FRESHET_CA_FILE=" + s.ca.file); err != nil {
		t.Errorf("with the authority: got %v, want no error", err)
	}
	if err := ask("FRESHET_CA_FILE=/no/such/file"); err == nil || !strings.Contains(err.Error(), "FRESHET_CA_FILE") {
		t.Errorf("with no such file: got %v, want an error that names FRESHET_CA_FILE", err)
	}
}

func TestHealthcheck_AsksASecuredListener(t *testing.T) {
	ca := newAuthority(t, "ca")
	certFile, keyFile, _ := ca.issue("server")
	ops := startSecureOps(t, ListenerTLSConfig{CertFile: certFile, KeyFile: keyFile, ClientCAFile: ca.file})
	env := []string{
		"FRESHET_OPS_TLS_CERT_FILE=" + certFile, "FRESHET_OPS_TLS_KEY_FILE=" + keyFile, "FRESHET_OPS_TLS_CLIENT_CA_FILE=" + ca.file,
		"FRESHET_OPS_LISTEN=" + strings.TrimPrefix(ops.base, "https://"),
	}
	if _, err := NewProcess(env, io.Discard, io.Discard).CheckHealth(t.Context(), ""); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestQuery_WarnsOfTokensOverPlainHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		tokens bool
		listen string
		change func(*Config)
		warns  int
	}{
		"beyond loopback":          {true, "0.0.0.0:8080", func(*Config) {}, 1},
		"on loopback":              {true, "127.0.0.1:8080", func(*Config) {}, 0},
		"where no token is needed": {false, "0.0.0.0:8080", func(*Config) {}, 0},
		"with TLS":                 {true, "0.0.0.0:8080", func(c *Config) { c.Query.TLS.CertFile = "cert.pem" }, 0},
		"behind a proxy":           {true, "0.0.0.0:8080", func(c *Config) { c.Access.TrustedProxies = []string{"10.0.0.0/8"} }, 0},
	} {
		config, err := loadConfig("", nil, builtInSources)
		if err != nil {
			t.Fatal(err)
		}
		c.change(&config)
		var log logBuffer
		p := queryRole{parts{config: config, log: slog.New(slog.NewJSONHandler(&log, nil))}}
		p.warnPlainHTTP(c.tokens, c.listen)
		if got := len(log.lines(t, "query service accepts tokens over plain HTTP beyond loopback")); got != c.warns {
			t.Errorf("%s: got %d warnings, want %d", name, got, c.warns)
		}
	}
}
