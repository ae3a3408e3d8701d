package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
