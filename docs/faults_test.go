package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// goFiles returns the concatenated text of the repository's Go files. It leaves out hidden folders, and
// files for whose path the function `keep` returns false. A line break precedes each file.
func goFiles(t *testing.T, keep func(path string) bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || !keep(path) {
			return nil
		}
		text, err := os.ReadFile(path)
		all.WriteString("\n")
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestWhatIsSaidOfFaultsExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(text), -1) {
		headings[strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = false
	}
	code := goFiles(t, func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 5 || strings.HasPrefix(line, "| fault ") {
			continue
		}
		rows++
		quoted := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1)
		if len(quoted) != 1 || !strings.Contains(code, `"`+quoted[0][1]) {
			t.Errorf("no program logs %s", cells[1])
		}
		metric := regexp.MustCompile("`([a-z_]+)").FindStringSubmatch(cells[2])
		if metric == nil || !strings.Contains(code, `"`+metric[1]+`"`) {
			t.Errorf("no program has the metric %s", cells[2])
		}
		for _, held := range regexp.MustCompile("`HELD_([A-Z]+)`").FindAllStringSubmatch(cells[3], -1) {
			if !strings.Contains(code, `"`+held[1]+`"`) {
				t.Errorf("there is no hold %s", held[0])
			}
		}
		anchor := regexp.MustCompile(`\(#([a-z-]+)\)`).FindStringSubmatch(cells[4])
		if anchor == nil {
			t.Errorf("%s: nothing is said of what to do", cells[0])
			continue
		}
		if _, there := headings[anchor[1]]; !there {
			t.Errorf("there is no section %s", anchor[1])
		}
		headings[anchor[1]] = true
	}
	if rows < 15 {
		t.Errorf("only %d faults", rows)
	}
	for h, used := range headings {
		if !used {
			t.Errorf("no fault leads to the section %s", h)
		}
	}
}
