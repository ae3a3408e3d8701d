package access

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCheck_NamesEachInvalidSetting(t *testing.T) {
	if err := DefaultConfig().Check(); err != nil {
		t.Error(err)
	}
	issuer := func(c *Config) {
		c.JWKSURL, c.Issuer, c.Audience = "https://issuer.example/keys", "https://issuer.example", "freshet"
	}
	for _, good := range []func(*Config){
		issuer,
		func(c *Config) { issuer(c); c.JWKSURL = "http://127.0.0.1:9000/keys" },
		func(c *Config) {
			c.AllowedOrigins = []string{"https://app.example", "http://localhost:3000", "http://[::1]:3000"}
		},
		func(c *Config) { c.Hosts = []string{"query", "my_query.internal", "10.0.0.7", "2001:db8::7", "*"} },
		func(c *Config) { c.Types, c.ScopePrefix = []string{"at+jwt"}, "https://freshet.example/" },
		func(c *Config) { c.TrustedProxies = []string{"10.0.0.0/8", "::1/128"} },
		func(c *Config) { c.Limits = Limits{Requests: "100/s", NewKeys: "0"} },
		func(c *Config) { c.ClientHeader, c.Limits.NewKeys, c.Limits.Outstanding = "X-Client-Id", "2000/m", 0 },
	} {
		c := DefaultConfig()
		if good(&c); c.Check() != nil {
			t.Errorf("%+v: got %v, want no error", c, c.Check())
		}
	}
	for want, wrong := range map[string]func(*Config){
		`require: "yes" must be auto, always or never`:              func(c *Config) { c.Require = "yes" },
		"jwksURL: issuer and audience need the URL":                 func(c *Config) { c.Issuer = "x" },
		"jwksURL: must be https://":                                 func(c *Config) { issuer(c); c.JWKSURL = "http://issuer.example/keys" },
		"without user and password":                                 func(c *Config) { issuer(c); c.JWKSURL = "https://u:hunter2@issuer.example/keys" },
		"issuer: required with jwksURL":                             func(c *Config) { issuer(c); c.Issuer = "" },
		"audience: required with jwksURL":                           func(c *Config) { issuer(c); c.Audience = "" },
		"algorithms: name at least one":                             func(c *Config) { issuer(c); c.Algorithms = nil },
		"algorithms[1]: HS256 is symmetric":                         func(c *Config) { c.Algorithms = []string{"RS256", "HS256"} },
		"algorithms[0]: none means unsigned":                        func(c *Config) { c.Algorithms = []string{"none"} },
		`algorithms[0]: "rs256" must be one of RS256`:               func(c *Config) { c.Algorithms = []string{"rs256"} },
		"types: name at least one, as in at+jwt":                    func(c *Config) { issuer(c); c.Types = nil },
		`types[1]: "application/at+jwt" must be`:                    func(c *Config) { c.Types = []string{"JWT", "application/at+jwt"} },
		`types[0]: "" must be`:                                      func(c *Config) { c.Types = []string{""} },
		`scopePrefix: "a b" must be printable`:                      func(c *Config) { c.ScopePrefix = "a b" },
		"allowedOrigins[0]: * would allow":                          func(c *Config) { c.AllowedOrigins = []string{"*"} },
		`allowedOrigins[0]: "https://app.example/" must be`:         func(c *Config) { c.AllowedOrigins = []string{"https://app.example/"} },
		`allowedOrigins[1]: "null" must be`:                         func(c *Config) { c.AllowedOrigins = []string{"https://a", "null"} },
		`allowedOrigins[0]: "https://App.example" must be`:          func(c *Config) { c.AllowedOrigins = []string{"https://App.example"} },
		`trustedProxies[0]: "10.0.0.7" must be a network`:           func(c *Config) { c.TrustedProxies = []string{"10.0.0.7"} },
		`limits.requests: "fast" must be a whole number per second`: func(c *Config) { c.Limits.Requests = "fast" },
		`limits.outstanding: 1h0m0s must be from 0`:                 func(c *Config) { c.Limits.Outstanding = time.Hour },
		`clientHeader: "X Client" must be the name of a header`:     func(c *Config) { c.ClientHeader = "X Client" },
		`clientHeader: cookie has another meaning`:                  func(c *Config) { c.ClientHeader = "cookie" },
		`limits.newKeys: "-5/m" must be`:                            func(c *Config) { c.Limits.NewKeys = "-5/m" },
		`allowedOrigins[0]: "https://*" must be`:                    func(c *Config) { c.AllowedOrigins = []string{"https://*"} },
		`allowedOrigins[0]: "https://*.example" must be`:            func(c *Config) { c.AllowedOrigins = []string{"https://*.example"} },
		`allowedOrigins[0]: "https://app.example?" must be`:         func(c *Config) { c.AllowedOrigins = []string{"https://app.example?"} },
		`allowedOrigins[0]: "https://app_x.example" must be`:        func(c *Config) { c.AllowedOrigins = []string{"https://app_x.example"} },
		`allowedOrigins[0]: "https://[::1%25lo]" must be`:           func(c *Config) { c.AllowedOrigins = []string{"https://[::1%25lo]"} },
		`hosts[0]: "query:8080" must be`:                            func(c *Config) { c.Hosts = []string{"query:8080"} },
		`hosts[1]: "http://query" must be`:                          func(c *Config) { c.Hosts = []string{"query", "http://query"} },
		`hosts[0]: "*.example" must be`:                             func(c *Config) { c.Hosts = []string{"*.example"} },
		`hosts[0]: "Query" must be`:                                 func(c *Config) { c.Hosts = []string{"Query"} },
		`hosts[0]: "" must be`:                                      func(c *Config) { c.Hosts = []string{""} },
		`hosts[0]: "[::1]" must be`:                                 func(c *Config) { c.Hosts = []string{"[::1]"} },
		"maxAge.apiKeys: 30s must be at least 1m0s":                 func(c *Config) { c.MaxAge.APIKeys = 30 * time.Second },
		"maxAge.adminKeys: 0s must be at least":                     func(c *Config) { c.MaxAge.AdminKeys = 0 },
		"maxAge.adminKeys: 48h0m0s must not be longer":              func(c *Config) { c.MaxAge.AdminKeys = 48 * time.Hour },
		"maxAge.signingKeys: 10m0s must be at least 20m0s":          func(c *Config) { c.MaxAge.SigningKeys = 10 * time.Minute },
		"limits.waiting: -1 must not be negative":                   func(c *Config) { c.Limits.Waiting = -1 },
	} {
		c := DefaultConfig()
		wrong(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestLoopback_IsOnlyThisMachine(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.9.9.9:1": true, "[::1]:8080": true, "localhost:8080": true, "[::ffff:127.0.0.1]:1": true, "::1": true, "localhost": true,
		"0.0.0.0:8080": false, "[::]:8080": false, ":8080": false, "10.0.0.1:80": false, "freshet.example:80": false, "localhost.example:80": false, "": false,
		"[[localhost]]": false, "[[127.0.0.1]]": false, "[[::1]]:80": false, "[::1]": true, "localhost.": false,
	} {
		if Loopback(address) != want {
			t.Errorf("%q: got %v", address, !want)
		}
	}
}

func TestRequiresAuth_RejectsOpenByMistake(t *testing.T) {
	const here, beyond = "127.0.0.1:8080", "0.0.0.0:8080"
	token := func(c *Config) { c.AdminTokenFile = "f" }
	issuer := func(c *Config) { c.JWKSURL = "https://issuer.example" }
	nothing := func(*Config) {}
	for _, c := range []struct {
		require Require
		means   func(*Config)
		made    bool
		listen  string
		asks    bool
		refused string
	}{
		{Auto, nothing, false, here, false, ""},
		{Auto, token, false, here, true, ""},
		{Auto, issuer, false, here, true, ""},
		{Auto, nothing, true, here, true, ""},
		{Auto, nothing, false, beyond, false, "not loopback"},
		{Auto, token, false, beyond, true, ""},
		{Auto, issuer, false, beyond, true, ""},
		{Auto, nothing, true, beyond, true, ""},
		{Always, nothing, false, here, false, "every request would be rejected"},
		{Always, nothing, false, beyond, false, "not loopback"},
		{Always, nothing, true, here, true, ""},
		{Always, token, false, beyond, true, ""},
		{Never, nothing, false, beyond, false, ""},
		{Never, token, true, beyond, false, ""},
		{Never, nothing, false, here, false, ""},
	} {
		config := DefaultConfig()
		config.Require = c.require
		c.means(&config)
		asks, err := config.requiresAuth(c.listen, c.made)
		if asks != c.asks || (err != nil) != (c.refused != "") {
			t.Errorf("%+v: %v, %v", c, asks, err)
			continue
		}
		if err != nil {
			for _, want := range []string{c.refused, "access.", "access.adminTokenFile", "access.jwksURL", "freshet keys create"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v does not mention %q", err, want)
				}
			}
		}
	}
}

func TestSetListenAddress_LogsAnOpenService(t *testing.T) {
	for _, c := range []struct {
		require Require
		listen  string
		want    string
	}{
		{Never, "0.0.0.0:80", "level=WARN msg=\"authentication disabled: every client that reaches the service"},
		{Never, "127.0.0.1:80", `level=INFO msg="authentication disabled" listen=127.0.0.1:80 reason="access.require is never"`},
		{Auto, "127.0.0.1:80", `level=INFO msg="authentication disabled" listen=127.0.0.1:80 reason="the service listens on loopback`},
	} {
		var log strings.Builder
		config := DefaultConfig()
		config.Require = c.require
		g, err := New(config, &fakeKeys{}, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewPedanticRegistry())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.SetListenAddress(c.listen); err != nil || g.AuthRequired() || !strings.Contains(log.String(), c.want) || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%+v: %v, %s", c, err, log.String())
		}
	}
}
