package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
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

func TestDocs_ComposeConfigurationIsValid(t *testing.T) {
	var compose struct {
		Services map[string]struct {
			Image       string
			Environment map[string]string
		}
	}
	// The YAML decoder would report a key that overrides a merged key (<<) as a duplicate, so this
	// test allows duplicates.
	if err := yaml.UnmarshalWithOptions([]byte(readDoc(t, "docker-compose.yml")), &compose, yaml.AllowDuplicateMapKey()); err != nil {
		t.Fatal(err)
	}
	roles := 0
	for name, s := range compose.Services {
		if s.Image != "freshet" {
			continue
		}
		roles++
		var env []string
		for variable, value := range s.Environment {
			env = append(env, variable+"="+value)
		}
		code, stdout, stderr := command(t, env, "config", "check", "--config", filepath.Join(root, "deploy", "freshet.yaml"))
		if code != 0 || !strings.Contains(stdout, "nexon: http://upstream:9090/") || strings.Contains(stdout, "NEXON_API_KEY is not set") == (name == "worker") {
			t.Errorf("%s: got exit %d, want 0, the simulated upstream, and a note about NEXON_API_KEY except for worker\n%s%s", name, code, stdout, stderr)
		}
	}
	if roles != 5 {
		t.Errorf("services with the image freshet: got %d, want 5", roles)
	}
}
