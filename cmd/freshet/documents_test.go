package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// quotedArgument matches a quoted argument in a shell command; it can contain spaces.
var quotedArgument = regexp.MustCompile(`"[^"]*"|'[^']*'`)

func TestDocs_CommandsOfDocumentsExist(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		text := readDoc(t, strings.TrimPrefix(file, root+"/"))
		for _, block := range fences.FindAllStringSubmatch(text, -1) {
			for line := range strings.Lines(block[1]) {
				line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
				if !prompt || !strings.HasPrefix(line, "freshet ") {
					continue
				}
				found++
				line = quotedArgument.ReplaceAllString(line, "text")
				if err := checkCommandLine(line); err != nil {
					t.Errorf("%s: %s: %v", filepath.Base(file), line, err)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("commands in the documents: got %d, want at least 30", found)
	}
}

func TestDocs_ReadmeConfigurationIsValid(t *testing.T) {
	_, text, _ := strings.Cut(readDoc(t, "README.md"), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	if lines := strings.Count(text, "\n"); lines == 0 || lines > 20 {
		t.Fatalf("lines of the example: got %d, want 1 to 20", lines)
	}
	code, stdout, stderr := command(t, []string{"SHOP_TOKEN=a-token"}, "config", "check", "--config", write(t, text))
	if code != 0 || !strings.Contains(stdout, "the configuration is valid") {
		t.Errorf("exit code: got %d, want 0\n%s%s", code, stdout, stderr)
	}
}
