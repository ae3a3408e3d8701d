package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// embeddedPackages matches the packages of the simulator and of the embedded services.
var embeddedPackages = regexp.MustCompile(`(^|/)(simulator|kfake|miniredis|gopher-lua|sqlite|libc)(/|$)`)

// embeddedModules returns the modules linked into a program that belong to an embedded service, and
// the number of all linked modules.
func embeddedModules(t *testing.T, program string) (embedded []string, linked int) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Deps {
		if embeddedPackages.MatchString(m.Path) {
			embedded = append(embedded, m.Path)
		}
	}
	return embedded, len(info.Deps)
}

var (
	productionDir   string // directory of the production build; TestMain deletes it
	buildProduction = sync.OnceValues(func() (program string, err error) {
		if productionDir, err = os.MkdirTemp("", "freshet-production-"); err != nil {
			return "", err
		}
		program = filepath.Join(productionDir, "freshet")
		flags := "-s -w -X " + releaseVariable + "=v9.8.7"
		if text, err := exec.Command("go", "build", "-tags", "production", "-ldflags", flags, "-o", program, ".").CombinedOutput(); err != nil {
			return "", fmt.Errorf("go build -tags production: %w\n%s", err, text)
		}
		return program, nil
	})
)

// productionBuild returns the path of a production build with the version v9.8.7. All tests share it.
func productionBuild(t *testing.T) (program string) {
	t.Helper()
	program, err := buildProduction()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func TestProductionBuild_LinksNoSimulatorAndNoEmbeddedService(t *testing.T) {
	program := productionBuild(t)
	embedded, linked := embeddedModules(t, program)
	if len(embedded) > 0 {
		t.Errorf("packages of the production build: got %v, want none of them", embedded)
	}
	t.Logf("the production build links %d modules", linked)

	text, err := exec.Command("go", "list", "-deps", "-tags", "production", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(text))
	if got := slices.DeleteFunc(packages, func(p string) bool { return !embeddedPackages.MatchString(p) }); len(got) > 0 {
		t.Errorf("dependencies of the production build: got %v, want none of them", got)
	}

	for _, command := range []string{"dev", "simulate"} {
		text, err := exec.Command(program, command, "--help").CombinedOutput()
		if err == nil || !strings.Contains(string(text), "freshet: this build has no command "+command) {
			t.Errorf("%s: got %v and %q, want an error that this build has no command %s", command, err, text, command)
		}
	}
	if text, err := exec.Command(program, "config", "check", "--config", write(t, nexonSource)).CombinedOutput(); err != nil {
		t.Errorf("config check: %v\n%s", err, text)
	}
}

// This test ensures that embeddedPackages is up to date: it must match packages of the default
// build, which links the embedded services.
func TestDefaultBuild_LinksTheEmbeddedServices(t *testing.T) {
	text, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"simulator", "kfake", "miniredis", "gopher-lua", "sqlite", "libc"} {
		if !slices.ContainsFunc(strings.Fields(string(text)), func(p string) bool {
			m := embeddedPackages.FindStringSubmatch(p)
			return m != nil && m[2] == want
		}) {
			t.Errorf("package %s of the default build: got none, want one; if it moved, correct the list of embedded packages", want)
		}
	}
}
