package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sizeLimits are the maximum sizes of the product's code, without tests. `sizeExceptions` are the
// sizes of the places that still exceed these limits. Such a place may shrink and must not grow.
var (
	sizeLimits = map[string]int{"fields": 20, "methods": 20, "interface methods": 4, "exported names": 60, "lines": 400}

	sizeExceptions = map[string]int{
		"exported names of problem": 66, // the package exports one name for each problem code
	}
)

// counts holds the size of each struct, interface, package and file, by kind and place.
type counts map[string]int

func (c counts) add(kind, place string, n int) { c[kind+" of "+place] += n }

// countFile adds the declarations of one file. The folder is the package's path in the repository.
func (c counts) countFile(t *testing.T, folder, file string) {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.add("lines", strings.TrimPrefix(filepath.ToSlash(file), "../"), files.File(parsed.Pos()).LineCount())
	for _, d := range parsed.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				c.add("methods", folder+"."+receiver(d.Recv.List[0].Type), 1)
			} else {
				c.countNames(folder, d.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				c.countSpec(folder, s)
			}
		}
	}
}

func (c counts) countNames(folder string, names ...*ast.Ident) {
	for _, name := range names {
		if name.IsExported() && folder != "schemas" && folder != "client" { // the packages schemas and client have no limit, because they need a name for each message and each API call
			c.add("exported names", folder, 1)
		}
	}
}

func (c counts) countSpec(folder string, s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		c.countNames(folder, s.Names...)
	case *ast.TypeSpec:
		c.countNames(folder, s.Name)
		switch of := s.Type.(type) {
		case *ast.StructType:
			for _, f := range of.Fields.List {
				c.add("fields", folder+"."+s.Name.Name, max(1, len(f.Names)))
			}
		case *ast.InterfaceType:
			c.add("interface methods", folder+"."+s.Name.Name, len(of.Methods.List))
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// countProduct counts the code of the main module, without tests, simulator and conformance suites.
func countProduct(t *testing.T) counts {
	t.Helper()
	c := counts{}
	skipped := []string{"bin", "e2e", "simulator", "servicetest", "storetest", "sourcetest", "testdata", "scripts", "deploy"}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && (strings.HasPrefix(d.Name(), ".") || slices.Contains(skipped, d.Name())) {
			return filepath.SkipDir
		}
		if folder, err := filepath.Rel("..", filepath.Dir(path)); err == nil && filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
			c.countFile(t, filepath.ToSlash(folder), path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c) < 1000 {
		t.Fatalf("counted places: got %d, want at least 1000", len(c))
	}
	return c
}

func TestSizes_StayWithinTheirLimits(t *testing.T) {
	c := countProduct(t)
	for _, place := range slices.Sorted(maps.Keys(c)) {
		kind, _, _ := strings.Cut(place, " of ")
		limit := max(sizeLimits[kind], sizeExceptions[place])
		if c[place] > limit {
			t.Errorf("%s: got %d, want at most %d; split it", place, c[place], limit)
		}
	}
}

func TestSizes_ExceptionsAreCurrent(t *testing.T) {
	c := countProduct(t)
	for _, place := range slices.Sorted(maps.Keys(sizeExceptions)) {
		kind, _, _ := strings.Cut(place, " of ")
		switch n := c[place]; {
		case n <= sizeLimits[kind]:
			t.Errorf("%s: got %d, which is within the limit; remove the exception", place, n)
		case n < sizeExceptions[place]:
			t.Errorf("%s: got %d, want the exception lowered from %d to it", place, n, sizeExceptions[place])
		}
	}
}
