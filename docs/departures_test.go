package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEachDepartureHasItsTest(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "departures.md"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, folder := range []string{"lua", "consumer", "producer"} {
		files, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(content)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(text), -1)
	for _, name := range names {
		if !strings.Contains(tests.String(), "\nfunc "+name[1]+"(") {
			t.Errorf("%s does not exist", name[1])
		}
	}
	if len(names) < 25 {
		t.Errorf("only %d tests were found; has the table changed its form?", len(names))
	}
}
