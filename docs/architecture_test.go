package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the folder of the repository.
const root = ".."

// declared returns the functions and methods that the Go files of a folder declare, as Func or
// Type.Func, and the package comment.
func declared(t *testing.T, dir string) (names []string, comment string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		comment += f.Doc.Text()
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				receiver := fn.Recv.List[0].Type
				if star, ok := receiver.(*ast.StarExpr); ok {
					receiver = star.X
				}
				switch generic := receiver.(type) {
				case *ast.IndexExpr:
					receiver = generic.X
				case *ast.IndexListExpr:
					receiver = generic.X
				}
				name = receiver.(*ast.Ident).Name + "." + name
			}
			names = append(names, name)
		}
	}
	return names, comment
}

func TestWhatTheMapNamesExists(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{"announced": "source/announced"}
	for _, name := range []string{"deadletters", "postgres", "prefetched", "shared", "sqlite"} {
		folders[name] = "store/" + name
	}
	known := map[string][]string{}
	checked := 0
	for _, m := range regexp.MustCompile("`([a-z]+)[./]([A-Za-z_.*]+)`").FindAllStringSubmatch(string(text), -1) {
		folder, name := m[1], m[2]
		if folder == "lua" && strings.HasSuffix(name, "_*") {
			continue
		}
		if folder == "lua" && name != "eval" {
			if _, err := os.Stat(filepath.Join(root, "lua", name+".lua")); err != nil {
				t.Errorf("%s: %v", m[0], err)
			}
			checked++
			continue
		}
		if in, ok := folders[folder]; ok {
			folder = in
		}
		if info, err := os.Stat(filepath.Join(root, folder)); err != nil || !info.IsDir() || strings.HasPrefix(m[0], "`"+m[1]+"/") {
			continue // the name is a path, a setting, or a package of another project, and is not checked
		}
		if known[folder] == nil {
			known[folder], _ = declared(t, filepath.Join(root, folder))
		}
		if !slices.Contains(known[folder], name) {
			t.Errorf("%s does not exist", m[0])
		}
		checked++
	}
	if checked < 35 {
		t.Errorf("only %d names were found in ARCHITECTURE.md; has the table changed its form?", checked)
	}
}

// TestPaths_HaveAtMostTwelveSteps counts the numbered rows of each section "The path of ...".
func TestPaths_HaveAtMostTwelveSteps(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	const maxSteps = 12
	paths := 0
	for section := range strings.SplitSeq(string(text), "\n## ") {
		if !strings.HasPrefix(section, "The path of ") {
			continue
		}
		paths++
		title, _, _ := strings.Cut(section, "\n")
		if steps := len(regexp.MustCompile(`(?m)^\| \d+ \|`).FindAllString(section, -1)); steps == 0 || steps > maxSteps {
			t.Errorf("%s: got %d steps, want 1 to %d", title, steps, maxSteps)
		}
	}
	if paths != 3 {
		t.Errorf("sections that begin with \"The path of\": got %d, want 3", paths)
	}
}

func TestEveryFolderSaysWhatItIsForAndIsOnTheMap(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || path == root {
			return err
		}
		if name := d.Name(); strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" {
			return fs.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
		if err != nil || len(files) == 0 {
			return err
		}
		if _, comment := declared(t, path); !strings.HasPrefix(comment, "Package ") && !strings.HasPrefix(comment, "Command ") {
			t.Errorf("%s has no package comment", path)
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), filepath.Base(rel)) {
			t.Errorf("%s is not on the map", rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNoFileIsLongerThanCanBeRead(t *testing.T) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".lua") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := strings.Count(string(text), "\n"); n > 520 || (n > 420 && !strings.HasSuffix(path, "_test.go")) {
			t.Errorf("%s has %d lines; which of them are another concept?", path, n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
