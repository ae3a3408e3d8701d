package main

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// releaseVariable holds the version that `freshet version` prints.
const releaseVariable = "github.com/freshet/freshet/app.release"

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
	if !maps.Equal(variables, map[string]bool{releaseVariable: true}) {
		t.Errorf("variables: got %v, want %s", variables, releaseVariable)
	}
	text, err := exec.Command(productionBuild(t), "version").Output()
	if err != nil || strings.TrimSpace(string(text)) != "freshet v9.8.7" {
		t.Errorf("built with %s: got %q, %v, want %q", releaseVariable, text, err, "freshet v9.8.7")
	}
}
