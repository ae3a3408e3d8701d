package app

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/simulator"
	"github.com/freshet/freshet/simulator/contract"
)

// saturationTest is a test that uses up the quota of a preset. It describes the load, and the policy of
// the simulator's contract that must limit the calls.
type saturationTest struct {
	speed  float64
	secret string
	keys   int
	low    map[string]int // number of callers of the LOW lane in each simulated process, by facet
	high   map[string]int
	// policy is the contract's policy that limits the calls. part is the fraction of this policy's
	// limit that the run must use; 0 means 0.95. The run lasts at least as long as warm, the time
	// until the calls fill the policy's window.
	policy string
	part   float64
	warm   time.Duration
	crowd  int // the numbers of callers are multiplied by this factor; 0 means 1
}

var saturations = map[string]saturationTest{
	// The preset's target is 450 of the 500 calls per second (docs/quotas.md), so part is relative
	// to 450.
	"nexon":             {secret: "app-1", keys: 500, high: map[string]int{"character-by-ocid": 100}, low: map[string]int{"character-by-ocid": 100}, policy: "second", part: 0.95 * 450 / 500},
	"nexon-development": {secret: "app-1", keys: 50, high: map[string]int{"character-by-ocid": 10}, policy: "second"},
	"github-rest":       {speed: 120, secret: "alice-1", keys: 500, low: map[string]int{"user": 20}, high: map[string]int{"user": 4}, policy: "core"},
	"github-graphql":    {speed: 120, secret: "alice-1", keys: 500, low: map[string]int{"contributions": 20}, high: map[string]int{"contributions": 4}, policy: "graphql"},
	"riot":              {speed: 12, secret: "key-1", keys: 500, low: map[string]int{"summoner-by-puuid": 10, "league-by-puuid": 10, "account": 10}, high: map[string]int{"summoner-by-puuid": 4, "account": 4}, policy: "application-120s"},
	"discord":           {speed: 1, secret: "bot-1", keys: 120, low: map[string]int{"channel": 30, "messages": 30}, high: map[string]int{"channel": 20, "messages": 20}, policy: "global"},
	"reddit":            {speed: 20, secret: "client-1", keys: 500, low: map[string]int{"subreddit": 10}, high: map[string]int{"subreddit": 2}, policy: "period"},
	"shopify-rest":      {secret: "shop-1", keys: 500, low: map[string]int{"product": 6}, high: map[string]int{"product": 2}, policy: "calls"},
	"shopify-graphql":   {secret: "shop-1", keys: 500, low: map[string]int{"collection": 6}, high: map[string]int{"collection": 2}, policy: "cost"},
	"stripe": {secret: "acct-1", keys: 500, policy: "global-rate", low: map[string]int{
		"customer": 8, "subscription": 8, "invoice": 8, "charge": 8, "product": 8,
	}, high: map[string]int{"customer": 2}},
	"openai": {secret: "org-1", keys: 500, low: map[string]int{"summary": 8}, high: map[string]int{"summary": 2}, policy: "tokens"},
	// At a higher speed, the calls that the policy "burst" allows are hardly enough to use all points.
	"jira":       {speed: 40, warm: 185 * time.Second, secret: "tenant-1", keys: 500, low: map[string]int{"issue": 6, "open": 10, "done": 10}, high: map[string]int{"issue": 2, "open": 2}, policy: "tenant-app-quota"},
	"hubspot":    {secret: "portal-1", keys: 500, high: map[string]int{"contact": 20}, policy: "TEN_SECONDLY_ROLLING"},
	"data-go-kr": {secret: "portal-1", keys: 500, high: map[string]int{"item": 20}, policy: "second"},
	"ietf":       {speed: 4, secret: "client-1", keys: 500, low: map[string]int{"resource": 10}, high: map[string]int{"resource": 2}, policy: "burst"},
	"court":      {keys: 500, low: map[string]int{"progress": 3, "general": 3}, high: map[string]int{"progress": 1}, policy: "minute", warm: 125 * time.Second},
}

// brisk and slow are latencies of the upstream. With slow, the latencies of the calls differ more,
// so the calls end out of order.
var brisk, slow = simulator.Range{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond}, simulator.Range{Min: 20 * time.Millisecond, Max: 600 * time.Millisecond}

func TestPresets_AreValid(t *testing.T) {
	for _, name := range presets.Names() {
		file := filepath.Join(t.TempDir(), name+".yaml")
		if err := os.WriteFile(file, presets.File(name, presets.All()[name]), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := loadConfig(file, nil, OptionalSources); err != nil || len(c.Sources[name].Facets) == 0 {
			t.Errorf("%s: got configuration %+v, %v, want one with facets", name, c, err)
		}
		if _, known := saturations[baseOf(name)]; !known {
			t.Errorf("saturationTest of %s: got none, want one", name)
		}
	}
}

// This preset makes hundreds of calls a second, so it is not tested in parallel with other presets.
func TestPresetNexon_UsesBudgetWithoutRefusals(t *testing.T) {
	saturations["nexon"].run(t, "nexon", contract.Options{Latency: brisk})
}

func TestPresets_UseBudgetWithoutRefusals(t *testing.T) {
	t.Parallel()
	for _, name := range presets.Names() {
		if name != "nexon" && name == baseOf(name) {
			saturations[name].run(t, name, contract.Options{Latency: brisk})
		}
	}
}

// The limiter must learn reported limits even if responses arrive late and out of order, and if the
// upstream's clock differs from the limiter's.
func TestPresets_LearnDespiteClockSkew(t *testing.T) {
	t.Parallel()
	for _, name := range presets.Names() {
		if len(preset(t, name).Announced) > 0 && name == baseOf(name) {
			how := saturations[name]
			how.crowd = 5 // use five times as many callers, because calls take five times as long
			switch {
			case strings.HasPrefix(name, "github"):
				how.speed = 80 // at a higher speed, more than the allowed 100 calls would be in flight
			case name == "ietf" && *saturate >= fullSaturation:
				// Each window loses a response time and the rounding of the headers (docs/quotas.md). Neither is
				// accelerated, so only windows of the real length show which part of the budget is used.
				how.speed, how.warm = 1, 125*time.Second
			}
			how.run(t, name, contract.Options{Latency: slow, MaxExtraLatency: 700 * time.Millisecond, Skew: 37 * time.Second})
		}
	}
}

func (how saturationTest) run(t *testing.T, name string, o contract.Options) {
	saturated(t, 0)
	t.Run(name, func(t *testing.T) {
		saturated(t, how.warm)
		if name != "nexon" {
			t.Parallel()
		}
		// A pause of this process that exceeds the quota's jitter makes the result invalid. The
		// test is then repeated.
		for range 3 {
			if how.once(t, name, o) {
				return
			}
		}
		t.Error("got no result, because this machine is too busy; want one")
	})
}

// once saturates a preset, and checks the upstream's counts of calls. It returns false if calls were
// refused while this process paused: the result is then invalid.
func (how saturationTest) once(t *testing.T, name string, o contract.Options) bool {
	if how.speed == 0 {
		how.speed = 1
	}
	o.Speed = how.speed
	a := startPresetRun(t, name, accelerated(preset(t, name), how.speed), o, map[string]string{"": how.secret}, 2)
	defer a.end()
	if err := a.config.check("preset"); err != nil {
		t.Fatal(err)
	}
	for lane, callers := range map[schemas.Lane]map[string]int{schemas.High: how.high, schemas.Low: how.low} {
		for facet, n := range callers {
			a.call(n*max(1, how.crowd), lane, facet, keys(facet, how.keys), nil)
		}
	}
	return a.measure(how, saturated(t, how.warm))
}

// measure saturates the preset for a duration, and checks the upstream's counts of accepted and
// refused calls.
func (a *presetRun) measure(how saturationTest, took time.Duration) bool {
	t := a.T
	t.Helper()
	pass := func(d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		<-timer.C
	}
	begun := a.await(func(s contract.Stats) bool { return s.Arrivals >= 3 })
	pass(3 * time.Second) // wait until all callers call at a constant rate
	warm := a.upstream.Stats()
	pass(took)
	s, elapsed := a.upstream.Stats(), time.Since(begun.First)
	stood := a.stood.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.Refused > 0 && stood > 0 && s.Refused <= int(stood) {
		t.Logf("this process stood still %d times, and %d of %d calls were refused", stood, s.Refused, s.Arrivals)
		return false
	}
	if s.Refused > 0 || len(a.bad) > 0 {
		t.Errorf("got %d refused: %v; %v; bad answers %v; want none refused, no bad answers", s.Refused, s.Refusals, s.Violations, a.bad)
	}
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
		over := elapsed
		if windowOf(t, p) <= time.Second { // with a short window, only the calls of the measurement are counted, and not the earlier calls
			over = s.Last.Sub(warm.Last) - windowOf(t, p) // minus one window, because the upstream may still accept calls in the window of the last call
			p.Used -= usedOf(warm, p)
		}
		most := float64(p.Limit) * over.Seconds() / windowOf(t, p).Seconds()
		t.Logf("%s %s: %.0f of %.0f %s in %v (%.1f %%), at most %.0f of %d in %s; %d calls, %d in flight, %d refused",
			p.Name, p.Scope, p.Used, most, p.Unit, over.Round(time.Millisecond), 100*p.Used/most, p.MaxInWindow, p.Limit, p.Window, s.Arrivals, s.MaxInFlight, s.Refused)
		if part := part * partOfUse(t); p.Used < part*most {
			t.Errorf("budget of %s: got %.1f %% used, want at least %.1f %%", p.Name, 100*p.Used/most, 100*part)
		}
	}
	if !found {
		t.Errorf("counts of %s: got none in %+v, want some", how.policy, s.Policies)
	}
	return true
}

// await waits until the function `holds` accepts the upstream's counts of calls, and returns these counts.
func (a *presetRun) await(holds func(contract.Stats) bool) contract.Stats {
	a.Helper()
	var s contract.Stats
	servicetest.WaitFor(a.T, 150*time.Second, "the first calls", func() bool { s = a.upstream.Stats(); return holds(s) })
	return s
}

// usedOf returns the usage of the policy and scope of p at an earlier time. s holds the contract's
// counts at that time.
func usedOf(s contract.Stats, p contract.PolicyStats) float64 {
	for _, before := range s.Policies {
		if before.Name == p.Name && before.Scope == p.Scope {
			return before.Used
		}
	}
	return 0
}

// windowOf returns the window of a contract's policy, or the refill time of its bucket.
func windowOf(t *testing.T, p contract.PolicyStats) time.Duration {
	t.Helper()
	window, err := time.ParseDuration(strings.TrimPrefix(p.Window, "filled in "))
	if err != nil {
		t.Fatal(err)
	}
	return window
}

// The leases of a crashed process's slots in flight must expire. Another process can then use these
// slots, but never more than the limit.
func TestPresetCourt_CrashedLeasesExpire(t *testing.T) {
	c := accelerated(preset(t, "court"), 1)
	c.Quota.Policies = []limiter.Policy{{Name: "slots", Limit: 3, Window: limiter.InFlight}}
	c.Timeout = time.Second
	lease := c.quota().Lease
	a := startPresetRun(t, "stripe", c, contract.Options{}, map[string]string{"": ""}, 2) // the test sends no calls, so any upstream will do
	defer a.end()
	crashing, living := a.limiters[0], a.limiters[1]
	call := limiter.Call{Endpoint: "progress/progress", Method: http.MethodGet, Key: "k"}
	spend := func(l *limiter.Limiter) *limiter.Permit {
		for {
			p, err := l.Acquire(t.Context(), schemas.Low, call)
			if err != nil {
				t.Fatal(err)
			}
			if p.Spend() {
				return p
			}
		}
	}
	for range 3 {
		spend(crashing)
	}
	crashed := time.Now() // as after a crash, the limiter "crashing" never reports the end of its three calls
	var back []time.Duration
	for range 3 {
		spend(living)
		back = append(back, time.Since(crashed))
	}
	t.Logf("slots free after: got %[2]v, want the lease of %[1]v", lease, back)
	if back[0] < lease-200*time.Millisecond || back[2] > lease+10*time.Second {
		t.Errorf("slots free after: got %[2]v, want the lease of %[1]v", lease, back)
	}
	waited := make(chan time.Time)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		if p, err := living.Acquire(ctx, schemas.High, call); err == nil {
			p.Release()
			waited <- time.Now()
		}
		close(waited)
	}()
	select {
	case <-waited:
		t.Error("in flight: got 4, want at most 3")
	case <-time.After(2 * time.Second):
	}
}
