package app

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/simulator/contract"
	"github.com/freshet/freshet/source"
)

// A source with two credentials has twice the quota of one credential. Each call must use the
// credential that has more quota left, so both credentials are used.
func TestCredentials_UseMostRemainingQuota(t *testing.T) {
	c := accelerated(preset(t, "github-rest"), 400) // time runs 400 times faster, so an hour takes 9 s
	c.Auth.SecretEnv = ""
	c.Credentials = nil
	secrets := map[string]string{}
	for _, name := range []string{"alice", "bob"} {
		c.Credentials = append(c.Credentials, source.Credential{Name: name, SecretEnv: strings.ToUpper(name)})
		secrets[name] = name + "-token"
	}
	c.Quota.Policies[0].Limit, c.Quota.Policies[0].HighReserve.Calls = 5000, 0
	a := startPresetRun(t, "github-rest", c, contract.Options{Speed: 400, Latency: simulator.Range{Min: 20 * time.Millisecond, Max: 60 * time.Millisecond}}, secrets, 2)
	defer a.end()
	a.call(40, schemas.Low, "user", keys("user", 500), nil)
	a.await(func(s contract.Stats) bool { return s.Arrivals > 3000 })
	s := a.upstream.Stats()
	used := map[string]float64{}
	for _, p := range s.Policies {
		if p.Name == "core" {
			used[p.Scope] = p.Used
		}
	}
	if used["alice"] < 1000 || used["bob"] < 1000 || s.Refused > 0 {
		t.Errorf("got usage %v, %d refused calls: %v; want at least 1000 of alice, 1000 of bob, none refused",
			used, s.Refused, s.Violations)
	}
}

// The only credential of a source has its own breaker in two cases: the credential is listed by
// name, or a rule opens the breaker when the credential's quota is used up.
func TestCredentials_SingleOneHasOwnBreaker(t *testing.T) {
	for name, c := range map[string]struct {
		config SourceConfig
		breaks bool
	}{
		"none is listed":        {SourceConfig{}, false},
		"one is listed":         {SourceConfig{Config: source.Config{Credentials: []source.Credential{{Name: "one"}}}}, true},
		"its quota is used up":  {SourceConfig{Config: source.Config{Rules: []source.Rule{{Class: source.Quota, Block: source.BlockCredential}}}}, true},
		"it is refused by rule": {SourceConfig{Config: source.Config{Rules: []source.Rule{{Class: source.AuthRefused, Block: source.BlockCredential}}}}, false},
	} {
		if _, breaks := c.config.quota().Breakers[source.BlockCredential]; breaks != c.breaks {
			t.Errorf("%s: breaker of the credential: got %v, want %v", name, breaks, c.breaks)
		}
	}
}
