package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	proseSample = flag.Int("prose-sample", 0, "print so many random comments, log messages, errors, page texts and alerts for a reader to judge")
	proseSeed   = flag.Uint64("prose-seed", 1, "seed of -prose-sample")
	proseMax    = flag.Int("prose-findings", 30, "maximum number of findings that TestProse_FollowsTheRules prints")
)

var (
	pageText  = regexp.MustCompile(`>([^<>{}]{12,})<`)
	alertText = regexp.MustCompile(`(?m)^ +(?:summary|description): (.+)$`)
	// testSuite matches the packages that test several implementations. These packages log nothing.
	testSuite = regexp.MustCompile(`/(storetest|sourcetest|openapitest|servicetest)/`)
)

// logMethods are the methods of slog.Logger that take a message.
var logMethods = []string{"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext"}

// TestProse_PrintsARandomSample prints a random sample of each kind of text that people read, such
// as comments and log messages:
//
//	go test ./docs -run PrintsARandomSample -v -prose-sample 100 -prose-seed 7
func TestProse_PrintsARandomSample(t *testing.T) {
	kinds := map[string][]string{}
	add := func(kind, path string, line int, text string) {
		place := strings.TrimPrefix(path, root+"/") + ":" + strconv.Itoa(line)
		kinds[kind] = append(kinds[kind], place+": "+strings.Join(strings.Fields(text), " "))
	}
	eachFile(t, func(path, text string) {
		switch filepath.Ext(path) {
		case ".html":
			if !strings.Contains(path, "console/templates") {
				return
			}
			for _, m := range pageText.FindAllStringSubmatchIndex(text, -1) {
				add("page text", path, strings.Count(text[:m[2]], "\n")+1, text[m[2]:m[3]])
			}
		case ".yml":
			if !strings.Contains(path, "prometheus/rules") {
				return
			}
			for _, m := range alertText.FindAllStringSubmatchIndex(text, -1) {
				add("alert", path, strings.Count(text[:m[2]], "\n")+1, text[m[2]:m[3]])
			}
		case ".go":
			fset := token.NewFileSet()
			f, err := parser.ParseFile(fset, path, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(text, "\n")
			for _, c := range f.Comments {
				// A directive such as //go:build has no text, and the output of an example is no prose.
				if c.Text() != "" && !strings.HasPrefix(c.Text(), "Output:") {
					add("comment", path, fset.Position(c.Pos()).Line, c.Text()+" ["+declaration(f, c.Pos())+codeAt(lines, fset.Position(c.Pos()).Line-1)+"]")
				}
			}
			if strings.HasSuffix(path, "_test.go") || testSuite.MatchString(path) {
				return
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					fn, ok := n.Fun.(*ast.SelectorExpr)
					s := firstText(n.Args)
					switch {
					case !ok || s == nil:
					case slices.Contains(logMethods, fn.Sel.Name) && strings.Contains(s.Value, " "): // Info of Redis has a name of one word
						add("log message", path, fset.Position(s.Pos()).Line, s.Value)
					case fn.Sel.Name == "Errorf" || fn.Sel.Name == "New" && strings.Contains(s.Value, " "):
						add("error", path, fset.Position(s.Pos()).Line, s.Value)
					}
				case *ast.KeyValueExpr: // the two messages of an observe.Condition
					key, ok := n.Key.(*ast.Ident)
					if s := firstText([]ast.Expr{n.Value}); ok && s != nil && (key.Name == "Failing" || key.Name == "Recovered") {
						add("log message", path, fset.Position(s.Pos()).Line, s.Value)
					}
				case *ast.BasicLit:
					if strings.Contains(path, "/console/") && strings.Count(n.Value, " ") > 1 {
						add("page text", path, fset.Position(n.Pos()).Line, n.Value)
					}
				}
				return true
			})
		}
	})
	for _, kind := range []string{"comment", "log message", "error", "page text", "alert"} {
		texts := kinds[kind]
		if len(texts) == 0 {
			t.Errorf("texts of kind %s: got none", kind)
		}
		rand.New(rand.NewPCG(*proseSeed, 0)).Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		t.Logf("%s: %d of %d, seed %d", kind, min(*proseSample, len(texts)), len(texts), *proseSeed)
		for _, text := range texts[:min(*proseSample, len(texts))] {
			t.Log(text)
		}
	}
}

// firstText returns the first string literal of the arguments, or nil.
func firstText(args []ast.Expr) *ast.BasicLit {
	for _, arg := range args {
		if s, ok := arg.(*ast.BasicLit); ok && s.Kind == token.STRING {
			return s
		}
	}
	return nil
}

// declaration returns the name of the declaration that contains a comment, or an empty string if no
// declaration contains the comment.
func declaration(f *ast.File, at token.Pos) string {
	for _, d := range f.Decls {
		if at < d.Pos() || at >= d.End() {
			continue
		}
		switch d := d.(type) {
		case *ast.FuncDecl:
			return "in " + d.Name.Name + ": "
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if t, ok := s.(*ast.TypeSpec); ok && at >= t.Pos() && at < t.End() {
					return "in type " + t.Name.Name + ": "
				}
			}
		}
	}
	return "code: "
}

// codeAt returns the line of code that a comment in line i describes: line i itself, or the first
// line of code after the comment.
func codeAt(lines []string, i int) string {
	for ; i < len(lines); i++ {
		if code, _, _ := strings.Cut(lines[i], "//"); strings.TrimSpace(code) != "" {
			return strings.TrimSpace(code)
		}
	}
	return ""
}

// eachFile calls `do` with each file of the repository that people read. Hidden, vendored and built
// files are left out.
func eachFile(t *testing.T, do func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || slices.Contains([]string{"vendor", "bin", "testdata"}, d.Name())) {
			return filepath.SkipDir
		}
		if d.IsDir() || !slices.Contains([]string{".go", ".md", ".sql", ".yaml", ".yml", ".html", ".lua"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		do(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
