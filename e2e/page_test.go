package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/testing.md must list every test that is skipped without -long. Every test that the page
// names must exist.
func TestTestingPage_ListsEveryLongTest(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	ofMainModule, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	ofFolders, err := filepath.Glob("*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(append(files, ofMainModule...), ofFolders...)
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	for _, name := range regexp.MustCompile("`((?:Test|Benchmark)[A-Za-z]+_[A-Za-z]+)`").FindAllStringSubmatch(string(page), -1) {
		if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("docs/testing.md names %s, which does not exist", name[1])
		}
	}
	long := regexp.MustCompile(`\nfunc (Test\w+)\(t \*testing\.T\) \{\n\tlongOnly\(t\)`).FindAllStringSubmatch(tests.String(), -1)
	atLeast(t, "long tests", len(long), strings.Count(tests.String(), "\tlongOnly(t)\n"))
	for _, name := range long {
		if !strings.Contains(string(page), "`"+name[1]+"`") {
			t.Errorf("docs/testing.md does not list %s", name[1])
		}
	}
}
