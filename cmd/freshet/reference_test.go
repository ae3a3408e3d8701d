package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/freshet/freshet/app"
	"github.com/freshet/freshet/presets"
	"github.com/freshet/freshet/reference"
)

// configPackages are the folders of the packages that define configuration structs.
var configPackages = []string{"app", "access", "credits", "limiter", "retention", "runs", "scheduler", "source", "source/announced", "source/derived", "source/items", "source/links", "source/token", "webhooks"}

// readComments returns the doc comments of the structs with yaml tags, and of the fields of these
// structs. The keys of the map have the form package.Type or package.Type.Field.
func readComments(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, folder := range configPackages {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if group, ok := d.(*ast.GenDecl); ok && group.Tok == token.TYPE {
					addComments(parsed.Name.Name, group, all)
				}
			}
		}
	}
	return all
}

// addComments adds the doc comments of one type declaration, and of its fields, to the map `all`.
func addComments(pkg string, group *ast.GenDecl, all map[string]string) {
	for _, spec := range group.Specs {
		named := spec.(*ast.TypeSpec)
		structure, ok := named.Type.(*ast.StructType)
		if !ok {
			continue
		}
		keys := map[string]string{} // keys in the configuration file, by the Go name of the field
		for _, field := range structure.Fields.List {
			if field.Tag == nil || len(field.Names) != 1 {
				continue
			}
			tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("yaml")
			if key, _, _ := strings.Cut(tag, ","); key != "" && key != "-" {
				keys[field.Names[0].Name] = key
			}
		}
		if len(keys) == 0 {
			continue
		}
		name := pkg + "." + named.Name.Name
		all[name] = toDescription(named.Name.Name, group.Doc.Text(), keys)
		for _, field := range structure.Fields.List {
			if len(field.Names) == 1 && keys[field.Names[0].Name] != "" {
				all[name+"."+field.Names[0].Name] = toDescription(field.Names[0].Name, field.Doc.Text(), keys)
			}
		}
	}
}

var firstWord = regexp.MustCompile(`^(is|are) `)

// toDescription returns a doc comment as the description of a setting: one paragraph without the
// leading Go name, with the keys of other fields in place of their Go names.
func toDescription(name, comment string, keys map[string]string) string {
	text := strings.Join(strings.Fields(comment), " ")
	if rest, ok := strings.CutPrefix(text, name+" "); ok {
		rest = firstWord.ReplaceAllString(rest, "")
		text = strings.ToUpper(rest[:1]) + rest[1:]
	}
	for _, field := range slices.Sorted(maps.Keys(keys)) {
		if key := keys[field]; strings.ToLower(field[:1])+field[1:] != field && !commonWords[field] {
			text = regexp.MustCompile(`\b`+field+`\b`).ReplaceAllString(text, "`"+key+"`")
		}
	}
	return text
}

// commonWords are Go names that are also words at the beginning of a sentence, or names of products.
var commonWords = map[string]bool{"Kafka": true, "Redis": true, "GraphQL": true, "URL": true, "Content": true, "Header": true, "Link": true, "Path": true, "Status": true, "Name": true}

// configSettings returns all settings of the configuration file.
func configSettings() (all []*reference.Setting) {
	app.Reference().Walk(func(s *reference.Setting) { all = append(all, s) })
	return all
}

func TestDocs_DescriptionsAreCurrent(t *testing.T) {
	comments, want := readComments(t), map[string]string{}
	for _, s := range configSettings() {
		for _, name := range []string{s.Owner, s.Section()} {
			if text := comments[name]; text != "" {
				want[name] = text
			}
		}
	}
	text, err := json.MarshalIndent(want, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "reference", "descriptions.json")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, file, append(text, '\n'))
	if *update && string(before) != string(append(text, '\n')) {
		t.Error("descriptions: written; run the same command again, because docs/configuration.md is made from the embedded file")
	}
}

// compareGolden compares a generated file with the file in the repository. With -update it writes the
// file.
func compareGolden(t *testing.T, file string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != string(want) {
		t.Errorf("%s: got another text than the source gives (%v); write it with: go test ./cmd/freshet -run Current -update", file, err)
	}
}

func TestDocs_EverySettingIsDescribed(t *testing.T) {
	for _, s := range configSettings() {
		if s.Owner != "" && len(s.Doc) < 12 {
			t.Errorf("%s: got the description %q, want a doc comment of %s", s.Path, s.Doc, s.Owner)
		}
	}
}

// generatedPart is the text with which the generated part of docs/configuration.md begins.
const generatedPart = "<!-- The part below is generated"

func TestDocs_ConfigurationIsCurrent(t *testing.T) {
	written, _, found := strings.Cut(readDoc(t, "docs/configuration.md"), generatedPart)
	if !found {
		t.Fatalf("docs/configuration.md: got no line %q, want one", generatedPart)
	}
	var want strings.Builder
	want.WriteString(written + generatedPart + " from the doc comments of the configuration structs: go test ./cmd/freshet -run Current -update -->\n")
	app.Reference().WriteTables(&want)
	compareGolden(t, filepath.Join(root, "docs", "configuration.md"), []byte(want.String()))
}

func TestDocs_ConfigurationDescribesEverySetting(t *testing.T) {
	text := readDoc(t, "docs/configuration.md")
	rows := 0
	for _, s := range configSettings() {
		if s.Owner == "" || !strings.Contains(s.Path, ".") { // a top-level section is a heading of the document, not a row
			continue
		}
		rows++
		if !strings.Contains(text, s.Name+"` | ") {
			t.Errorf("%s: got no row, want one", s.Path)
		}
	}
	if rows < 100 {
		t.Errorf("settings: got %d, want at least 100", rows)
	}
}

// The output of config print --comments is a valid configuration that editors can check.
func TestConfigPrint_CommentsAreAValidFile(t *testing.T) {
	environment := []string{"NEXON_API_KEY=k"}
	code, text, stderr := command(t, environment, "config", "print", "--comments", "--config", write(t, nexonSource))
	if code != 0 || !strings.HasPrefix(text, "# yaml-language-server: $schema=") {
		t.Fatalf("got exit %d, %.80q, stderr %s; want a file that names its schema", code, text, stderr)
	}
	if code, stdout, stderr := command(t, environment, "config", "check", "--config", write(t, text)); code != 0 {
		t.Errorf("config check: got exit %d, want 0: %s%s", code, stdout, stderr)
	}
}

func TestConfigPrint_CommentsKeepTheContent(t *testing.T) {
	for name := range presets.All() {
		_, preset, _ := command(t, nil, "config", "preset", name)
		file := write(t, preset)
		code, plain, stderr := command(t, nil, "config", "print", "--config", file)
		if code != 0 {
			t.Fatalf("%s: %s", name, stderr)
		}
		_, commented, stderr := command(t, nil, "config", "print", "--comments", "--config", file)
		var kept strings.Builder
		comments := 0
		for line := range strings.Lines(commented) {
			if strings.HasPrefix(strings.TrimSpace(line), "# ") {
				comments++
			} else {
				kept.WriteString(line)
			}
		}
		if kept.String() != plain {
			t.Errorf("%s: without comments got\n%s\nwant\n%s%s", name, kept.String(), plain, stderr)
		}
		if comments < 100 {
			t.Errorf("%s: lines of comments: got %d, want at least 100", name, comments)
		}
	}
}
