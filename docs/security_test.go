package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestSecurityDocument_NamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := goFiles(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
	names := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(text), -1)
	for _, name := range names {
		if !strings.Contains(tests, "\nfunc "+name[1]+"(") {
			t.Errorf("SECURITY.md names %s, which does not exist", name[1])
		}
	}
	if len(names) < 15 {
		t.Errorf("got %d names of tests, want at least 15: the table may have changed its form", len(names))
	}
}

func TestSecurityDocument_HasARowForEachFinding(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| ([HML][0-9]+): [^|]+ \| [^|]+ \| [^|]+ \| [^|]+ \|$`).FindAllStringSubmatch(string(text), -1)
	var got []string
	for _, row := range rows {
		got = append(got, row[1])
	}
	const want = "H1 H2 H3 M1 M2 M3 M4 M5 M6 M7 L1 L2 L3 L4 L5 L6 L7 L8 L9 L10 L11 L12 L13 L14 L15"
	if strings.Join(got, " ") != want {
		t.Errorf("got rows for %v, want %s", got, want)
	}
}
