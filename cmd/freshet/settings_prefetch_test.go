package main

import (
	"strings"
	"testing"
)

func TestSettings_PrefetchIsChangedByCommand(t *testing.T) {
	d := startDev(t, "--simulate", "--config", prefetching(t))
	row := func(text, want string) {
		t.Helper()
		if table := strings.Join(strings.Fields(text), " "); !strings.Contains(table, want) {
			t.Errorf("settings: got %s, want %q in it", table, want)
		}
	}
	row(d.mustRun(0, nil, "settings", "get"), "mirror prefetch on on mirror prefetch.f.hot 1h 1h mirror prefetch.f.warm 6h 6h mirror prefetch.f.cold 24h 24h "+
		"mirror prefetch.f.minInterval 30m 30m mirror prefetch.f.maxInterval 168h 168h mirror prefetch.f.active {} {}")
	changed := d.mustRun(0, nil, "settings", "set", "prefetch=off", "prefetch.f.hot=30m", `prefetch.f.active={"params":["p"]}`, "second.target=400")
	row(changed, "mirror prefetch on off mirror prefetch.f.hot 1h 30m ")
	row(changed, `mirror prefetch.f.active {} {"params":["p"]}`)
	row(changed, "mirror second.target 0 400")
	row(d.mustRun(0, nil, "settings", "set", "prefetch=", "prefetch.f.active="), `mirror prefetch on on mirror prefetch.f.hot 1h 30m`)
	d.mustRun(0, []string{`"prefetch":{"facets":{"f":{"hot":"30m"}}}`}, "settings", "audit")
	d.mustRun(1, []string{"they must rise"}, "settings", "set", "prefetch.f.hot=7h")
	d.mustRun(1, []string{"it prefetches f"}, "settings", "set", "prefetch.quiet.hot=7h")
	d.mustRun(2, []string{"must be on or off"}, "settings", "set", "prefetch=no")
	d.mustRun(2, []string{"must be a duration"}, "settings", "set", "prefetch.f.hot=often")
	d.mustRun(2, []string{"unknown setting"}, "settings", "set", "prefetch.f.mode=off")
	d.mustRun(2, []string{"must be an object"}, "settings", "set", "prefetch.f.active=none")
}
