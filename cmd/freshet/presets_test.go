package main

import (
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/simulator/contract"
)

// saturation is how a preset is saturated, and which policy of the contract that uses up.
type saturation struct {
	speed  float64
	secret string
	keys   int
	low    map[string]int // callers of a process by facet
	high   map[string]int
	// The policy of the contract that binds, and which part of it is used: 0.95 where not
	// said. Its window passes warm before anything is counted.
	policy string
	part   float64
	warm   time.Duration
	agent  string
}

var saturations = map[string]saturation{
	// 450 of the 500 calls are what the preset uses (quota.md §2).
	"nexon-service":     {secret: "app-1", keys: 500, high: map[string]int{"character": 100}, low: map[string]int{"character": 100}, policy: "second", part: 0.95 * 450 / 500},
	"nexon-development": {secret: "app-1", keys: 50, high: map[string]int{"character": 10}, policy: "second"},
	"github-rest":       {speed: 60, secret: "alice-1", keys: 500, low: map[string]int{"user": 20}, high: map[string]int{"user": 4}, policy: "core"},
	"github-graphql":    {speed: 60, secret: "alice-1", keys: 500, low: map[string]int{"contributions": 20}, high: map[string]int{"contributions": 4}, policy: "graphql"},
	"riot":              {speed: 12, secret: "key-1", keys: 500, low: map[string]int{"summoner": 10, "league": 10}, high: map[string]int{"summoner": 4}, policy: "application-120s"},
	"discord":           {speed: 1, secret: "bot-1", keys: 120, low: map[string]int{"channel": 60, "messages": 60}, high: map[string]int{"channel": 20}, policy: "global"},
	"reddit":            {speed: 20, secret: "client-1", keys: 500, low: map[string]int{"subreddit": 10}, high: map[string]int{"subreddit": 2}, policy: "period"},
	"shopify-rest":      {secret: "shop-1", keys: 500, low: map[string]int{"product": 6}, high: map[string]int{"product": 2}, policy: "calls"},
	"shopify-graphql":   {secret: "shop-1", keys: 500, low: map[string]int{"collection": 6}, high: map[string]int{"collection": 2}, policy: "cost"},
	"stripe": {secret: "acct-1", keys: 500, policy: "global-rate", low: map[string]int{
		"customer": 8, "subscription": 8, "invoice": 8, "charge": 8, "product": 8,
	}, high: map[string]int{"customer": 2}},
	"openai":     {secret: "org-1", keys: 500, low: map[string]int{"summary": 8}, high: map[string]int{"summary": 2}, policy: "tokens"},
	"jira":       {speed: 120, secret: "tenant-1", keys: 500, low: map[string]int{"issue": 6, "open": 20, "done": 20}, high: map[string]int{"issue": 2}, policy: "tenant-app-quota"},
	"hubspot":    {secret: "portal-1", keys: 500, high: map[string]int{"contact": 20}, policy: "TEN_SECONDLY_ROLLING"},
	"data-go-kr": {secret: "portal-1", keys: 500, high: map[string]int{"item": 20}, policy: "second"},
	"ietf":       {speed: 4, secret: "client-1", keys: 500, low: map[string]int{"resource": 10}, high: map[string]int{"resource": 2}, policy: "burst"},
	"court":      {keys: 500, low: map[string]int{"progress": 3, "general": 3}, high: map[string]int{"progress": 1}, policy: "minute", warm: 125 * time.Second},
}

func TestEachPresetUsesItsBudgetAndIsNeverRefused(t *testing.T) {
	for _, name := range presets.Names() {
		t.Run(name, func(t *testing.T) {
			how, known := saturations[name]
			if !known {
				t.Fatalf("nobody has said how %s is saturated", name)
			}
			t.Parallel()
			o := contract.Options{Speed: how.speed, Latency: simulator.Range{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}}
			how.run(t, name, o)
		})
	}
}

func (how saturation) run(t *testing.T, name string, o contract.Options) {
	if how.speed == 0 {
		how.speed = 1
	}
	o.Speed = how.speed
	secrets := map[string]string{"": how.secret}
	a := begin(t, name, accelerated(preset(t, name), how.speed), o, secrets, 2)
	if err := a.config.check("preset"); err != nil {
		t.Fatal(err)
	}
	for lane, callers := range map[schemas.Lane]map[string]int{schemas.High: how.high, schemas.Low: how.low} {
		for facet, n := range callers {
			a.call(n, lane, facet, keys(how.keys), nil)
		}
	}
	took := saturated(t)
	if how.warm > took {
		took = how.warm
	}
	a.measure(how, took)
}

// measure lets the callers call for so long and judges by what the upstream has counted.
func (a *against) measure(how saturation, took time.Duration) {
	t := a.T
	t.Helper()
	begun := a.await(func(s contract.Stats) bool { return s.Arrivals >= 3 })
	timer := time.NewTimer(took)
	defer timer.Stop()
	<-timer.C
	s := a.upstream.Stats()
	elapsed := s.Last.Sub(begun.First)
	part := how.part
	if part == 0 {
		part = 0.95
	}
	found := false
	for _, p := range s.Policies {
		if p.Name != how.policy {
			continue
		}
		found = true
		most := perSecondOf(t, p) * elapsed.Seconds()
		t.Logf("%s %s: %.0f of %.0f %s in %v (%.1f %%), at most %.0f of %d in %s; %d arrivals, %d in flight, %d refused",
			p.Name, p.Scope, p.Used, most, p.Unit, elapsed.Round(time.Millisecond), 100*p.Used/most, p.MaxInWindow, p.Limit, p.Window, s.Arrivals, s.MaxInFlight, s.Refused)
		if p.Used < part*most {
			t.Errorf("%.1f %% of the budget of %s was used; want %.1f %%", 100*p.Used/most, p.Name, 100*part)
		}
	}
	if !found {
		t.Errorf("the contract has counted nothing for %s: %+v", how.policy, s.Policies)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.Refused > 0 || len(a.bad) > 0 {
		t.Errorf("%d refused: %v; %v; answers %v", s.Refused, s.Refusals, s.Violations, a.bad)
	}
}

// await returns what the upstream has counted once that holds.
func (a *against) await(holds func(contract.Stats) bool) contract.Stats {
	a.Helper()
	var s contract.Stats
	within(a.T, 150*time.Second, "the first calls", func() bool { s = a.upstream.Stats(); return holds(s) })
	return s
}

// perSecondOf is what a policy of a contract allows on the average.
func perSecondOf(t *testing.T, p contract.PolicyStats) float64 {
	t.Helper()
	window, err := time.ParseDuration(strings.TrimPrefix(p.Window, "filled in "))
	if err != nil {
		t.Fatal(err)
	}
	return float64(p.Limit) / window.Seconds()
}
