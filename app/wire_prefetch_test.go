package app

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

// prefetchParts returns parts with the built-in source, whose facet character is prefetched by
// tiers.
func prefetchParts(t *testing.T) parts {
	t.Helper()
	config, err := loadConfig("", nil, builtInSources)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Sources[builtInSource]
	facet := scheduler.DefaultConfig()
	facet.Mode = scheduler.Tiers
	c.Prefetch.Facets = map[string]scheduler.Config{"character": facet}
	config.Sources[builtInSource] = c
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return parts{config: config, store: db, log: slog.New(slog.DiscardHandler)}
}

func live(t *testing.T, p parts) *livePrefetch {
	t.Helper()
	l, err := p.livePrefetch(builtInSource)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// firstIn returns the longest time until the first due time among 200 hot entities that are
// registered now. First due times are spread over one interval of the tier.
func firstIn(l *livePrefetch, now time.Time) time.Duration {
	longest := time.Duration(0)
	for i := range 200 {
		e := schemas.Entity{Source: builtInSource, Facet: "character", Key: strings.Repeat("k", i+1)}
		due, _ := l.FirstDue(prefetched.RegisteredEntity{Entity: e, Tier: prefetched.Hot}, now)
		longest = max(longest, due.Sub(now))
	}
	return longest
}

func TestLivePrefetch_FollowsAChangeInTheDatabase(t *testing.T) {
	p := prefetchParts(t)
	l := live(t, p)
	if _, enabled := l.now(t.Context()); !enabled {
		t.Fatal("got prefetching disabled, want enabled as configured")
	}
	if got := firstIn(l, time.Now()); got < 40*time.Minute || got > 62*time.Minute {
		t.Errorf("the longest first interval of tier hot: got %v, want about 1h", got)
	}
	change := func(hot string) error {
		var patch settings.Patch
		if err := json.Unmarshal([]byte(`{"prefetch":{"enabled":false,"facets":{"character":{"hot":"`+hot+`"}}}}`), &patch); err != nil {
			t.Fatal(err)
		}
		_, err := p.settings().Change(t.Context(), settings.ChangeRequest{Source: builtInSource, Actor: "a"}, patch)
		return err
	}
	if err := change("5m"); err == nil || !strings.Contains(err.Error(), "jitter") {
		t.Errorf("an interval with too much jitter: got %v, want it refused", err)
	}
	if err := change("20m"); err != nil {
		t.Fatal(err)
	}
	servicetest.WaitFor(t, eventTimeout, "the change in force", func() bool { _, enabled := l.now(t.Context()); return !enabled })
	if got := firstIn(l, time.Now()); got > 21*time.Minute {
		t.Errorf("the longest first interval of tier hot: got %v, want about 20m", got)
	}
}

// fakeRead runs a test in a synctest bubble with a livePrefetch that reads the test's settings.
func fakeRead(t *testing.T, test func(l *livePrefetch, set func(settings.PrefetchOverride, error))) {
	t.Helper()
	p := prefetchParts(t)
	synctest.Test(t, func(t *testing.T) {
		l := live(t, p)
		var o settings.PrefetchOverride
		var failed error
		l.read = func(context.Context, string) (settings.PrefetchOverride, error) { return o, failed }
		test(l, func(now settings.PrefetchOverride, err error) { o, failed = now, err })
	})
}

func TestLivePrefetch_IsReadOnceASecond(t *testing.T) {
	fakeRead(t, func(l *livePrefetch, set func(settings.PrefetchOverride, error)) {
		l.now(t.Context())
		set(settings.PrefetchOverride{Enabled: new(bool)}, nil)
		if _, enabled := l.now(t.Context()); !enabled {
			t.Error("at once: got disabled, want the settings of the last read")
		}
		time.Sleep(prefetchReadInterval)
		if _, enabled := l.now(t.Context()); enabled {
			t.Errorf("after %v: got enabled, want the change in force", prefetchReadInterval)
		}
	})
}

func TestLivePrefetch_KeepsTheLastSettingsWhileTheyCannotBeRead(t *testing.T) {
	fakeRead(t, func(l *livePrefetch, set func(settings.PrefetchOverride, error)) {
		set(settings.PrefetchOverride{Enabled: new(bool)}, nil)
		l.now(t.Context())
		set(settings.PrefetchOverride{}, errors.New("the database is away"))
		time.Sleep(time.Hour)
		if _, enabled := l.now(t.Context()); enabled {
			t.Error("without the database: got enabled, want disabled as it was set last")
		}
	})
}

// An override may change a facet that a newer configuration no longer has. The configured schedule
// then applies. If the override also disables prefetching, prefetching stays disabled.
func TestLivePrefetch_WithoutAFittingChangeIsAsConfigured(t *testing.T) {
	fakeRead(t, func(l *livePrefetch, set func(settings.PrefetchOverride, error)) {
		hour := settings.Duration(time.Hour)
		set(settings.PrefetchOverride{Enabled: new(bool), Facets: map[string]settings.FacetOverride{"gone": {Hot: &hour}}}, nil)
		schedule, enabled := l.now(t.Context())
		if schedule != l.base || enabled {
			t.Errorf("got another schedule: %v, enabled: %v, want the configured one, disabled", schedule != l.base, enabled)
		}
	})
}

func TestWithPrefetch_RefusesWhatTheConfigurationWould(t *testing.T) {
	c := prefetchParts(t).config.Sources[builtInSource]
	duration := func(d time.Duration) *settings.Duration { return new(settings.Duration(d)) }
	for name, test := range map[string]struct {
		facet  string
		change settings.FacetOverride
		words  string
	}{
		"falling intervals":             {"character", settings.FacetOverride{Hot: duration(7 * time.Hour)}, "they must rise"},
		"too short":                     {"character", settings.FacetOverride{Hot: duration(time.Second)}, "they must rise, from 1m0s"},
		"minInterval above maxInterval": {"character", settings.FacetOverride{MinInterval: duration(200 * time.Hour)}, "minInterval and maxInterval"},
		"unknown facet":                 {"other", settings.FacetOverride{Hot: duration(time.Hour)}, "it prefetches character"},
		"unknown param":                 {"character", settings.FacetOverride{Active: &settings.Active{Params: []string{"nothing"}}}, `no param "nothing"`},
		"unknown document":              {"character", settings.FacetOverride{Active: &settings.Active{Unless: []string{"nothing.x"}}}, "must begin with a document"},
		"path without words": {
			"character",
			settings.FacetOverride{Active: &settings.Active{Status: settings.Status{Path: "basic.x"}}},
			"needs `path`, and at least one value",
		},
	} {
		_, err := c.prefetch(settings.PrefetchOverride{Facets: map[string]settings.FacetOverride{test.facet: test.change}})
		if err == nil || !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: got %v, want an error with %q", name, err, test.words)
		}
	}
	if p, err := c.prefetch(settings.PrefetchOverride{}); err != nil || p.Facets["character"].Warm != settings.Duration(6*time.Hour) {
		t.Errorf("as configured: got %+v, %v, want warm every 6h", p, err)
	}
	if c.Prefetch.Facets["character"].Tiers.Hot.Every != time.Hour {
		t.Errorf("configured interval of tier hot: got %v, want 1h", c.Prefetch.Facets["character"].Tiers.Hot.Every)
	}
}
