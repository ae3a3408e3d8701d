package scheduler

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/freshet/freshet/limiter"
)

func TestConfig_RoundTripsOverDefaults(t *testing.T) {
	const text = `
mode: adaptive
maxInterval: 72h
notBefore: 02:00
timeZone: Asia/Seoul
triggers: {general: {backoff: 24h}}
`
	var c Config
	if err := yaml.UnmarshalWithOptions([]byte(text), &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	if c.Mode != Adaptive || c.MaxInterval != 72*time.Hour || c.NotBefore != 120 || c.Tiers != want.Tiers || c.Triggers["general"].Backoff != 24*time.Hour {
		t.Errorf("got %+v", c)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	written, err := yaml.Marshal(c)
	if err != nil || !strings.Contains(string(written), "02:00") {
		t.Errorf("%v: got the YAML\n%s", err, written)
	}
}

func TestConfig_DefaultsFitTheIntervals(t *testing.T) {
	const m, h = time.Minute, time.Hour
	for text, want := range map[string]struct {
		hot, warm, cold, least, most       time.Duration
		jitter, automatic, manual, backoff time.Duration
	}{
		"{}":                                  {h, 6 * h, 24 * h, 30 * m, 168 * h, m, 10 * m, 30 * m, 10 * m},
		"{tiers: {hot: {every: 1m}}}":         {m, 6 * h, 24 * h, 30 * m, 168 * h, m / 8, m, 30 * m, 10 * m},
		"{tiers: {hot: {every: 7h}}}":         {7 * h, 7 * h, 24 * h, 30 * m, 168 * h, m, 10 * m, 30 * m, 10 * m},
		"{tiers: {cold: {every: 5m}}}":        {5 * m, 5 * m, 5 * m, 30 * m, 168 * h, 5 * m / 8, 5 * m, 5 * m, 5 * m},
		"{tiers: {warm: {every: 30h}}}":       {h, 30 * h, 30 * h, 30 * m, 168 * h, m, 10 * m, 30 * m, 10 * m},
		"{tiers: {hot: {reads: 99}}}":         {h, 6 * h, 24 * h, 30 * m, 168 * h, m, 10 * m, 30 * m, 10 * m},
		"{mode: adaptive, minInterval: 1m}":   {h, 6 * h, 24 * h, m, 168 * h, m, m, 30 * m, 10 * m},
		"{mode: adaptive, minInterval: 200h}": {h, 6 * h, 24 * h, 200 * h, 200 * h, m, 10 * m, 30 * m, 10 * m},
		"{mode: adaptive, maxInterval: 10m}":  {h, 6 * h, 24 * h, 10 * m, 10 * m, m, 10 * m, 30 * m, 10 * m},
		"{tiers: {hot: {every: 1m}}, jitter: 0s, backoff: 2m, cooldown: {automatic: 0s, manual: 1m}}": {m, 6 * h, 24 * h, 30 * m, 168 * h, 0, 0, m, 2 * m},
	} {
		var c Config
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		got := want
		got.hot, got.warm, got.cold, got.least, got.most = c.Tiers.Hot.Every, c.Tiers.Warm.Every, c.Tiers.Cold.Every, c.MinInterval, c.MaxInterval
		got.jitter, got.automatic, got.manual, got.backoff = c.Jitter, c.Cooldown.Automatic, c.Cooldown.Manual, c.Backoff
		if got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	for text, mention := range map[string]string{
		"{tiers: {hot: {every: 7h}, warm: {every: 6h}}}": "they must rise",
		"{tiers: {hot: {every: 1m}}, jitter: 1m}":        "jitter: 1m0s must be from 0 to an eighth",
		"{tiers: {hot: {every: 1s}}}":                    "they must rise, from 1m0s",
		"{minInterval: 2h, maxInterval: 1h}":             "they must rise",
	} {
		var c Config
		if err := yaml.Unmarshal([]byte(text), &c); err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%s: got %v, want an error that contains %q", text, err, mention)
		}
	}
}

func TestConfig_NamesMistakes(t *testing.T) {
	if err := DefaultConfig().Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"mode":             func(c *Config) { c.Mode = "often" },
		"tiers":            func(c *Config) { c.Tiers.Warm.Every = time.Minute },
		"tiers: hot.reads": func(c *Config) { c.Tiers.Warm.Reads = math.NaN() },
		"tiers.cold.reads": func(c *Config) { c.Tiers.Cold.Reads = 1 },
		"maxInterval: minInterval and maxInterval are 30m0s and 1m0s; they must rise": func(c *Config) { c.MaxInterval = time.Minute },
		"maxInterval: minInterval and maxInterval are 30m0s and 3000":                 func(c *Config) { c.MaxInterval = 3000 * time.Hour },
		"minInterval: minInterval and maxInterval are 48h0m0s and 24h0m0s":            func(c *Config) { c.MinInterval, c.MaxInterval = 48*time.Hour, 24*time.Hour },
		"minInterval: minInterval and maxInterval are 200h0m0s and 168h0m0s":          func(c *Config) { c.MinInterval = 200 * time.Hour },
		"minInterval: minInterval and maxInterval are 0s":                             func(c *Config) { c.MinInterval = 0 },
		"notBefore":                func(c *Config) { c.NotBefore = 2000 },
		"timeZone":                 func(c *Config) { c.TimeZone = "Asia/Soul" },
		"jitter":                   func(c *Config) { c.Jitter = time.Hour },
		"cooldown.automatic":       func(c *Config) { c.Cooldown.Automatic = 2 * time.Hour },
		"cooldown.manual":          func(c *Config) { c.Cooldown.Manual = -1 },
		"backoff":                  func(c *Config) { c.Backoff = 0 },
		"tiers: hot.every":         func(c *Config) { c.Tiers = TierSet{Hot: Tier{Reads: 2}, Warm: Tier{Reads: 1}} },
		"minInterval: minInterval": func(c *Config) { c.Mode, c.MinInterval = Adaptive, time.Second },
		"triggers.a.backoff":       func(c *Config) { c.Triggers = map[string]Trigger{"a": {Backoff: -1}} },
		"triggers.a.quiet: -1ns must be from 1s to 24h0m0s": func(c *Config) { c.Triggers = map[string]Trigger{"a": {Quiet: -1}} },
		"triggers.a.quiet: 10ms must be from 1s":            func(c *Config) { c.Triggers = map[string]Trigger{"a": {Quiet: 10 * time.Millisecond}} },
		"triggers.a.quiet: 25h0m0s":                         func(c *Config) { c.Triggers = map[string]Trigger{"a": {Quiet: 25 * time.Hour}} },
		"triggers.a.maxDelay: 1h0m0s bounds how long a refresh waits for quiet; set quiet too": func(c *Config) {
			c.Triggers = map[string]Trigger{"a": {MaxDelay: time.Hour}}
		},
		"triggers.a.maxDelay: 30s must be from quiet, 1m0s, to 168h0m0s": func(c *Config) {
			c.Triggers = map[string]Trigger{"a": {Quiet: time.Minute, MaxDelay: 30 * time.Second}}
		},
		"triggers.a.maxDelay: 200h0m0s": func(c *Config) {
			c.Triggers = map[string]Trigger{"a": {Quiet: time.Minute, MaxDelay: 200 * time.Hour}}
		},
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Check(); err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, s := range []BudgetConfig{{TimeZone: "x"}, {RateCaps: []RateCap{{}}}, {RateCaps: []RateCap{{From: 25, Rate: 1}}}, {RateCaps: []RateCap{{Rate: limiter.Rate(math.NaN())}}}} {
		if s.Check() == nil {
			t.Errorf("%+v: got no error", s)
		}
	}
}

func TestTriggers_RejectCycles(t *testing.T) {
	with := func(to ...string) Config {
		c := Config{Triggers: map[string]Trigger{}}
		for _, facet := range to {
			c.Triggers[facet] = Trigger{}
		}
		return c
	}
	if err := CheckTriggers(map[string]Config{"progress": with("general"), "general": with()}); err != nil {
		t.Error(err)
	}
	for _, bad := range []map[string]Config{
		{"a": with("a")}, {"a": with("b"), "b": with("c"), "c": with("a")}, {"a": with("nobody")},
	} {
		if CheckTriggers(bad) == nil {
			t.Errorf("%v: got no error", bad)
		}
	}
	want := `facets.a.triggers.nobody: there is no facet "nobody"; the facets are: a, b`
	if err := CheckTriggers(map[string]Config{"a": with("nobody"), "b": with()}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestTrigger_DefaultMaxDelay(t *testing.T) {
	for _, c := range []struct {
		trigger        Trigger
		quiet, longest time.Duration
	}{
		{Trigger{}, 0, 0},
		{Trigger{Quiet: time.Minute}, time.Minute, 10 * time.Minute},
		{Trigger{Quiet: 24 * time.Hour}, 24 * time.Hour, 7 * 24 * time.Hour},
		{Trigger{Quiet: time.Minute, MaxDelay: time.Hour}, time.Minute, time.Hour},
	} {
		if quiet, longest := c.trigger.Delays(); quiet != c.quiet || longest != c.longest {
			t.Errorf("%+v: got %v and %v, want %v and %v", c.trigger, quiet, longest, c.quiet, c.longest)
		}
	}
}
