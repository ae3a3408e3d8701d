package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
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

// Release builds set the variable release with a linker flag. The linker does not report an unknown
// variable, so this test checks the name in the flag.
func TestVersion_SetByLinkerFlag(t *testing.T) {
	setting := regexp.MustCompile(`-X (\S+)=(\{\{ \.Tag }}|\$VERSION)"`)
	variables := map[string]bool{}
	for _, file := range []string{".goreleaser.yaml", "deploy/Dockerfile"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		m := setting.FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("%s: got no version, want one", file)
		}
		variables[m[1]] = true
	}
	for variable := range variables {
		program := filepath.Join(t.TempDir(), "freshet")
		build := exec.Command("go", "build", "-o", program, "-ldflags", "-s -w -X "+variable+"=v9.8.7", ".")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		text, err := exec.Command(program, "version").Output()
		if err != nil || strings.TrimSpace(string(text)) != "freshet v9.8.7" {
			t.Errorf("built with %s: got %q, %v, want %q", variable, text, err, "freshet v9.8.7")
		}
	}
}
