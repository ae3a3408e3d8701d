package app

import (
	"runtime/debug"
	"testing"
)

func TestVersion_PrefersRelease(t *testing.T) {
	of := func(version string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: version}}
	}
	for _, c := range []struct {
		release string
		info    *debug.BuildInfo
		want    string
	}{
		{"v1.2.3", of("(devel)"), "v1.2.3"},
		{"v1.2.3", of("v1.2.2"), "v1.2.3"},
		{"", of("v1.2.3"), "v1.2.3"}, // a build with go install …@v1.2.3 has this module version and no release
		{"", of("v1.2.4-0.20261122090000-0123456789ab+dirty"), "v1.2.4-0.20261122090000-0123456789ab+dirty"},
		{"", of("(devel)"), "v0.0.0-dev"},
		{"", of(""), "v0.0.0-dev"},
		{"", nil, "v0.0.0-dev"},
	} {
		if have := versionOf(c.release, c.info); have != c.want {
			t.Errorf("%q and %+v: got %s, want %s", c.release, c.info, have, c.want)
		}
	}
}
