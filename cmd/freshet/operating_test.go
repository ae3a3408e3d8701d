package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/deploy"
)

// root is the root directory of the repository.
const root = "../.."

func readDoc(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	spans  = regexp.MustCompile("`([^`\n]+)`")
	fences = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$")
)

// checkCommandLine returns the usage error of a command line, without running it.
func checkCommandLine(line string) error {
	line, _, _ = strings.Cut(line, " #")
	c, rest, err := newRoot(nil, io.Discard, io.Discard).Find(strings.Fields(line)[1:])
	if err != nil {
		return err
	}
	if err := c.ParseFlags(rest); err != nil {
		return err
	}
	if given := c.Flags().Args(); c.HasSubCommands() || len(given) > 0 { // a page may name a command without its arguments
		return c.ValidateArgs(given)
	}
	return nil
}

// operatingPages are the pages of the operating guide, in docs.
var operatingPages = []string{"operating.md", "capacity.md"}

func TestDocs_CommandsOfOperatingGuideExist(t *testing.T) {
	var lines []string
	for _, page := range operatingPages {
		text := readDoc(t, "docs", page)
		for _, block := range fences.FindAllStringSubmatch(text, -1) {
			lines = append(lines, strings.Split(block[1], "\n")...)
		}
		for _, span := range spans.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
			lines = append(lines, span[1])
		}
	}
	looked := 0
	for _, line := range lines {
		if !strings.HasPrefix(line, "freshet ") {
			continue
		}
		looked++
		if err := checkCommandLine(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if looked < 30 {
		t.Errorf("commands of the guide: got %d, want at least 30; if the form of the guide changed, change the pattern", looked)
	}
	for _, wrong := range []string{"freshet nothing", "freshet limiter --nothing", "freshet topics nothing", "freshet limiter nothing"} {
		if checkCommandLine(wrong) == nil {
			t.Errorf("%s: got no error, want one", wrong)
		}
	}
}

func TestDocs_NamesOfOperatingGuideExist(t *testing.T) {
	known := readDoc(t, "docs", "metrics.md")
	files, err := filepath.Glob(filepath.Join(root, "schemas", "migrations", "postgres", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatalf("migrations: got %v, %v, want some", files, err)
	}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`CREATE TABLE (\w+)`).FindAllStringSubmatch(readDoc(t, "schemas", "migrations", "postgres", filepath.Base(file)), -1) {
			known += "`" + m[1] + "`"
		}
	}
	for _, name := range []string{"pg_dump", "pg_basebackup", "pg_total_relation_size", "hot_standby_feedback", "max_wal_size", "wal_compression", "pool_max_conns"} {
		known += "`" + name + "`" // the pages may use this name: it comes from PostgreSQL, not from freshet's metrics and migrations
	}
	panels, err := deploy.Panels("5m")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range operatingPages {
		text := fences.ReplaceAllString(readDoc(t, "docs", page), "")
		for _, span := range spans.FindAllStringSubmatch(text, -1) {
			if name := span[1]; regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`).MatchString(name) && !strings.Contains(known, "`"+name+"`") {
				t.Errorf("%s: got %s, want a metric of docs/metrics.md or a table", page, name)
			}
		}
		for _, m := range regexp.MustCompile(`\b_([A-Z][^_\n]+)_\b`).FindAllStringSubmatch(text, -1) {
			if !slices.ContainsFunc(panels, func(p deploy.Panel) bool { return p.Title == m[1] }) {
				t.Errorf("%s: panel %s: got none, want one", page, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([a-z]*(?:\.md)?)#([a-z-]+)\)`).FindAllStringSubmatch(text, -1) {
			of := m[1]
			if of == "" {
				of = page
			}
			there := false
			for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(readDoc(t, "docs", of), -1) {
				title := strings.NewReplacer(",", "", "'", "").Replace(strings.ToLower(h[1]))
				there = there || strings.ReplaceAll(title, " ", "-") == m[2]
			}
			if !there {
				t.Errorf("%s: section %s of %s: got none, want one", page, m[2], of)
			}
		}
	}
}
