package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// problemCode is a code with its HTTP status, its meaning and the action for the client.
type problemCode struct{ code, status, meaning, action string }

// contractEnum returns the values of an enum in the OpenAPI document, and the text of that document
// from the enum's schema on.
func contractEnum(t *testing.T, schema string) (values []string, text string) {
	t.Helper()
	_, text, found := strings.Cut(readFile(t, "schemas/openapi.yaml"), "\n    "+schema+":\n")
	if !found {
		t.Fatalf("schemas/openapi.yaml has no schema %s", schema)
	}
	_, list, _ := strings.Cut(text, "\n      enum:\n")
	for line := range strings.SplitSeq(list, "\n") {
		value, isItem := strings.CutPrefix(line, "        - ")
		if !isItem {
			break
		}
		values = append(values, value)
	}
	return values, text
}

func contractCodes(t *testing.T) (enum []string, described []problemCode) {
	t.Helper()
	enum, text := contractEnum(t, "ProblemCode")
	described = codesOf(regexp.MustCompile("(?m)^        - `([a-z-]+)` \\(([0-9]{3})\\): (.+?\\.) (.+)$"), text)
	return enum, described
}

func codesOf(row *regexp.Regexp, text string) []problemCode {
	var codes []problemCode
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		codes = append(codes, problemCode{m[1], m[2], m[3], m[4]})
	}
	return codes
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// codeConstants returns the codes of package problem by the names of their constants.
func codeConstants(t *testing.T) map[string]string {
	t.Helper()
	constants := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+Code = "([^"]+)"$`).FindAllStringSubmatch(readFile(t, "problem/codes.go"), -1) {
		constants[m[1]] = m[2]
	}
	return constants
}

func TestProblemCodes_AreEqualInCodeContractAndDocument(t *testing.T) {
	enum, described := contractCodes(t)
	var inCode, inDescription []string
	for _, code := range codeConstants(t) {
		inCode = append(inCode, code)
	}
	for _, c := range described {
		inDescription = append(inDescription, c.code)
	}
	if !slices.Equal(inDescription, enum) {
		t.Errorf("description of ProblemCode: got %v, want the codes of its enum %v", inDescription, enum)
	}
	sorted := slices.Sorted(slices.Values(enum))
	if slices.Sort(inCode); !slices.Equal(inCode, sorted) {
		t.Errorf("problem/codes.go: got %v, want the codes of the contract %v", inCode, sorted)
	}
	documented := codesOf(regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([0-9]{3}) \\| ([^|]+) \\| ([^|]+) \\|$"), readFile(t, "docs/http-api.md"))
	for i, want := range described {
		if i >= len(documented) || documented[i] != want {
			t.Errorf("docs/http-api.md: got no row %d of\n| `%s` | %s | %s | %s |", i+1, want.code, want.status, want.meaning, want.action)
		}
	}
	if len(documented) != len(described) {
		t.Errorf("docs/http-api.md: got %d rows of codes, want %d", len(documented), len(described))
	}
}

func TestRefreshReasons_AreEqualInCodeAndContract(t *testing.T) {
	var inCode, inDescription []string
	for _, m := range regexp.MustCompile(`(?m)^\t\w+\s+RefreshReason = "([^"]+)"`).FindAllStringSubmatch(readFile(t, "query/deps.go"), -1) {
		inCode = append(inCode, m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)^\tHold\w+\s+= "([^"]+)"`).FindAllStringSubmatch(readFile(t, "schemas/coalescing.go"), -1) {
		inCode = append(inCode, "HELD_"+m[1])
	}
	enum, text := contractEnum(t, "RefreshReason")
	description, _, _ := strings.Cut(text, "\n      enum:\n")
	for _, m := range regexp.MustCompile("(?m)^        - `([A-Z_]+)`: ").FindAllStringSubmatch(description, -1) {
		inDescription = append(inDescription, m[1])
	}
	if !slices.Equal(inDescription, enum) {
		t.Errorf("description of RefreshReason: got %v, want the values of its enum %v", inDescription, enum)
	}
	slices.Sort(inCode)
	if want := slices.Sorted(slices.Values(enum)); !slices.Equal(inCode, want) {
		t.Errorf("reasons in the code: got %v, want the values of the contract %v", inCode, want)
	}
}

// Each call of problem.New must use a constant of package problem as its code. The status of the call
// must be the status of this code in the OpenAPI document. Each constant must be used.
func TestProblemCodes_AreConstants(t *testing.T) {
	_, described := contractCodes(t)
	statusOf := map[string]string{}
	for _, c := range described {
		statusOf[c.code] = c.status
	}
	constants, used := codeConstants(t), map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "problem/codes.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		inPackage := filepath.Base(filepath.Dir(path)) == "problem"
		ast.Inspect(file, func(n ast.Node) bool {
			if name := constantName(n, inPackage); constants[name] != "" {
				used[name] = true
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) != 3 || constantName(call.Fun, inPackage) != "New" {
				return true
			}
			if _, literal := call.Args[1].(*ast.BasicLit); literal {
				t.Errorf("%s: problem.New has a string as its code; use a constant of package problem", path)
			}
			status, isConstant := call.Args[0].(*ast.SelectorExpr)
			code := constants[constantName(call.Args[1], inPackage)]
			if isConstant && code != "" && statusName(statusOf[code]) != status.Sel.Name {
				t.Errorf("%s: got http.%s for %s, want status %s of the contract", path, status.Sel.Name, code, statusOf[code])
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range constants {
		if !used[name] {
			t.Errorf("problem.%s is not used", name)
		}
	}
}

// constantName returns the name X if the expression is problem.X, or if it is X and the file is in
// package problem. For other expressions it returns an empty string.
func constantName(n ast.Node, inPackage bool) string {
	switch n := n.(type) {
	case *ast.Ident:
		if inPackage {
			return n.Name
		}
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok && x.Name == "problem" {
			return n.Sel.Name
		}
	}
	return ""
}

// statusName returns the name of the constant in net/http for an HTTP status, such as StatusNotFound.
func statusName(status string) string {
	n, _ := strconv.Atoi(status)
	return "Status" + strings.ReplaceAll(http.StatusText(n), " ", "")
}
