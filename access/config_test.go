package access

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestEveryMistakeIsSaidWithItsSettingAndWhatWouldBeRight(t *testing.T) {
	if err := DefaultConfig().Check(); err != nil {
		t.Error(err)
	}
	issuer := func(c *Config) {
		c.JWKSURL, c.Issuer, c.Audience = "https://issuer.example/keys", "https://issuer.example", "freshet"
	}
	for _, good := range []func(*Config){
		issuer,
		func(c *Config) { issuer(c); c.JWKSURL = "http://127.0.0.1:9000/keys" },
		func(c *Config) { c.AllowedOrigins = []string{"https://app.example", "http://localhost:3000"} },
		func(c *Config) { c.TrustedProxies = []string{"10.0.0.0/8", "::1/128"} },
		func(c *Config) { c.Limits = Limits{Requests: "100/s", NewKeys: "0"} },
	} {
		c := DefaultConfig()
		if good(&c); c.Check() != nil {
			t.Errorf("%+v: %v", c, c.Check())
		}
	}
	for want, wrong := range map[string]func(*Config){
		`require: "yes" must be auto, always or never`:               func(c *Config) { c.Require = "yes" },
		"jwksURL: issuer and audience are of tokens":                 func(c *Config) { c.Issuer = "x" },
		"jwksURL: write it as https://":                              func(c *Config) { issuer(c); c.JWKSURL = "http://issuer.example/keys" },
		"without user and password":                                  func(c *Config) { issuer(c); c.JWKSURL = "https://u:hunter2@issuer.example/keys" },
		"issuer: a token must name":                                  func(c *Config) { issuer(c); c.Issuer = "" },
		"audience: a token must be meant":                            func(c *Config) { issuer(c); c.Audience = "" },
		"algorithms: name at least one":                              func(c *Config) { issuer(c); c.Algorithms = nil },
		"algorithms[1]: HS256 is symmetric":                          func(c *Config) { c.Algorithms = []string{"RS256", "HS256"} },
		"algorithms[0]: none signs nothing":                          func(c *Config) { c.Algorithms = []string{"none"} },
		`algorithms[0]: "rs256" must be one of RS256`:                func(c *Config) { c.Algorithms = []string{"rs256"} },
		"allowedOrigins[0]: * would let":                             func(c *Config) { c.AllowedOrigins = []string{"*"} },
		`allowedOrigins[0]: "https://app.example/" must be`:          func(c *Config) { c.AllowedOrigins = []string{"https://app.example/"} },
		`allowedOrigins[1]: "null" must be`:                          func(c *Config) { c.AllowedOrigins = []string{"https://a", "null"} },
		`allowedOrigins[0]: "https://App.example" must be`:           func(c *Config) { c.AllowedOrigins = []string{"https://App.example"} },
		`trustedProxies[0]: "10.0.0.7" must be a network`:            func(c *Config) { c.TrustedProxies = []string{"10.0.0.7"} },
		`limits.requests: "fast" must be a whole number in a second`: func(c *Config) { c.Limits.Requests = "fast" },
		`limits.newKeys: "-5/m" must be`:                             func(c *Config) { c.Limits.NewKeys = "-5/m" },
		"limits.underWay: -1 must not be negative":                   func(c *Config) { c.Limits.UnderWay = -1 },
	} {
		c := DefaultConfig()
		wrong(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestAnAddressIsLoopbackOnlyIfThisMachineAloneReachesIt(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8080": true, "127.9.9.9:1": true, "[::1]:8080": true, "localhost:8080": true, "[::ffff:127.0.0.1]:1": true, "::1": true, "localhost": true,
		"0.0.0.0:8080": false, "[::]:8080": false, ":8080": false, "10.0.0.1:80": false, "freshet.example:80": false, "localhost.example:80": false, "": false,
	} {
		if Loopback(address) != want {
			t.Errorf("%q: %v", address, !want)
		}
	}
}

func TestWhatWouldBeOpenByMistakeOrShutToEverybodyDoesNotStart(t *testing.T) {
	const here, beyond = "127.0.0.1:8080", "0.0.0.0:8080"
	token := func(c *Config) { c.AdminTokenFile = "f" }
	issuer := func(c *Config) { c.JWKSURL = "https://issuer.example" }
	nothing := func(*Config) {}
	for _, c := range []struct {
		require Require
		means   func(*Config)
		keys    int
		listen  string
		asks    bool
		refused string
	}{
		{Auto, nothing, 0, here, false, ""},
		{Auto, token, 0, here, true, ""},
		{Auto, issuer, 0, here, true, ""},
		{Auto, nothing, 1, here, true, ""},
		{Auto, nothing, 0, beyond, false, "beyond loopback"},
		{Auto, token, 0, beyond, true, ""},
		{Auto, issuer, 0, beyond, true, ""},
		{Auto, nothing, 1, beyond, true, ""},
		{Always, nothing, 0, here, false, "nobody could ever call"},
		{Always, nothing, 0, beyond, false, "beyond loopback"},
		{Always, nothing, 1, here, true, ""},
		{Always, token, 0, beyond, true, ""},
		{Never, nothing, 0, beyond, false, ""},
		{Never, token, 1, beyond, false, ""},
		{Never, nothing, 0, here, false, ""},
	} {
		config := DefaultConfig()
		config.Require = c.require
		c.means(&config)
		asks, err := config.asks(c.listen, c.keys)
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

func TestAnOpenServiceSaysSoInItsLog(t *testing.T) {
	for listen, want := range map[string]bool{"0.0.0.0:80": true, "127.0.0.1:80": false} {
		var log strings.Builder
		c := DefaultConfig()
		c.Require = Never
		g, err := New(c, &fakeKeys{}, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewPedanticRegistry())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Listen(listen); err != nil || g.Required() || strings.Contains(log.String(), "whoever reaches the service") != want {
			t.Errorf("%s: %v, %s", listen, err, log.String())
		}
	}
}
