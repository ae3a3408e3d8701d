package app

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestBuild_HasCommitAndDate(t *testing.T) {
	info := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789ab"}, {Key: "vcs.time", Value: "2026-11-22T20:57:20Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	want := Build{Version: "v1.2.3", Commit: "0123456789ab", Date: "2026-11-22T20:57:20Z", Go: runtime.Version(), Modified: true}
	if got := buildOf("v1.2.3", info); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := buildOf("", nil), (Build{Version: "v0.0.0-dev", Go: runtime.Version()}); got != want {
		t.Errorf("without build info: got %+v, want %+v", got, want)
	}
}

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
