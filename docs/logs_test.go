package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// listConditions returns the rows that the table in docs/logs.md must have, one for each
// observe.Condition in the code. A row has the condition's event, and the messages that are logged when
// the condition begins and ends.
func listConditions(t *testing.T) (rows []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if kind, ok := literal.Type.(*ast.SelectorExpr); !ok || kind.Sel.Name != "Condition" {
				return true
			}
			fields := map[string]string{}
			for _, element := range literal.Elts {
				pair, keyed := element.(*ast.KeyValueExpr)
				if !keyed {
					t.Errorf("%s: got a Condition without field names, want names", path)
					return true
				}
				if value, constant := pair.Value.(*ast.BasicLit); constant {
					fields[pair.Key.(*ast.Ident).Name], _ = strconv.Unquote(value.Value)
				}
			}
			for _, name := range []string{"Event", "Failing", "Recovered"} {
				if fields[name] == "" {
					t.Errorf("%s: got a Condition %v, want a constant %s", path, fields, name)
				}
			}
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | `%s` |", fields["Event"], fields["Failing"], fields["Recovered"]))
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(rows)
	return rows
}

func TestLogs_ListEveryCondition(t *testing.T) {
	text, err := os.ReadFile("logs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Conditions\n")
	section, _, _ = strings.Cut(section, "\n## ")
	listed := regexp.MustCompile("(?m)^\\| `.*$").FindAllString(section, -1)
	want := listConditions(t)
	if len(want) < 25 {
		t.Errorf("conditions in the code: got %d, want at least 25; if their form changed, change this test", len(want))
	}
	if !slices.Equal(listed, want) {
		t.Errorf("docs/logs.md lists other conditions than the code has; want these rows:\n%s", strings.Join(want, "\n"))
	}
}

func TestLogs_EventsAreUniqueSnakeCase(t *testing.T) {
	name := regexp.MustCompile("^\\| `[a-z]+(_[a-z]+)*` ")
	last := ""
	for _, row := range listConditions(t) {
		event := name.FindString(row)
		if event == "" || event == last {
			t.Errorf("event: got %s, want a unique name in snake_case", row)
		}
		last = event
	}
}
