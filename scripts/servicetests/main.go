// Command servicetests finds the tests that need a real service, so that one stage of continuous
// integration runs only these tests. It reads the source code: a test needs a service if it calls a
// function of package servicetest that reads an address. The call may be direct, or through other
// functions in the test files of the test's package.
//
//	go run ./scripts/servicetests -packages ./...   prints the packages that have such tests
//	go run ./scripts/servicetests -run ./...        prints a pattern for go test -run
package main

import (
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	packages := flag.Bool("packages", false, "print the packages, one a line")
	run := flag.Bool("run", false, "print a pattern for go test -run")
	flag.Parse()
	if *packages == *run || flag.NArg() != 1 || flag.Arg(0) != "./..." {
		fmt.Fprintln(os.Stderr, "usage: servicetests -packages|-run ./...")
		os.Exit(2)
	}
	found, err := find(".")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out := io.Writer(os.Stdout)
	if *packages {
		for _, dir := range slices.Sorted(maps.Keys(found)) {
			fmt.Fprintln(out, "./"+dir)
		}
		return
	}
	names := slices.Concat(slices.Collect(maps.Values(found))...)
	slices.Sort(names)
	fmt.Fprintf(out, "^(%s)$\n", strings.Join(slices.Compact(names), "|"))
}

// find returns the names of the tests that need a service, by folder. root is the root directory of
// the module.
func find(root string) (map[string][]string, error) {
	services, err := starters(root)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	for _, name := range services {
		if test, own := strings.CutPrefix(name, servicePackage+"."); own && isTest(test) {
			found[servicePackage] = append(found[servicePackage], test)
		}
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != root {
			if strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return fs.SkipDir // skips a folder that is the root of another module
			}
		}
		tests, err := inFolder(path, services)
		if len(tests) > 0 {
			rel, relErr := filepath.Rel(root, path)
			found[filepath.ToSlash(rel)], err = tests, errors.Join(err, relErr)
		}
		return err
	})
	return found, err
}

// servicePackage is the package whose functions return the addresses of services. Each of these
// functions calls the function with the name `address` of the same package.
const servicePackage = "servicetest"

// starters returns the functions and the tests of package servicetest that need a real service.
func starters(root string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(root, servicePackage, "*.go"))
	if err != nil {
		return nil, err
	}
	names, err := callersOf([]string{"address"}, files)
	for i := range names {
		names[i] = servicePackage + "." + names[i]
	}
	return names, err
}

// inFolder returns the tests of one folder that call one of the functions in starters.
func inFolder(dir string, starters []string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	names, err := callersOf(starters, files)
	return slices.DeleteFunc(names, func(name string) bool { return !isTest(name) }), err
}

func isTest(name string) bool { return strings.HasPrefix(name, "Test") && name != "TestMain" }

// callersOf returns the functions in the files that use one of the targets, directly or through
// other functions in the files. The result is sorted. The name of a method begins with a dot. Two
// functions, or two methods, with the same name are not distinguished. The result can therefore
// contain a test that needs no service, but it never omits a test that needs a service.
func callersOf(targets, files []string) ([]string, error) {
	used := map[string]map[string]bool{} // names that the body of each function uses
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range parsed.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				name := fn.Name.Name
				if fn.Recv != nil {
					name = "." + name
				}
				if used[name] == nil {
					used[name] = map[string]bool{}
				}
				collect(fn.Body, used[name])
			}
		}
	}
	reached := map[string]bool{}
	for _, target := range targets {
		reached[target] = true
	}
	for changed := true; changed; {
		changed = false
		for name, names := range used {
			if reached[name] {
				continue
			}
			for other := range names {
				if reached[other] {
					reached[name], changed = true, true
					break
				}
			}
		}
	}
	for _, target := range targets {
		delete(reached, target)
	}
	return slices.Sorted(maps.Keys(reached)), nil
}

// collect adds the names that a function's body uses to the map "into". Names of package servicetest
// keep the package name as a prefix.
func collect(body ast.Node, into map[string]bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == servicePackage {
				into[servicePackage+"."+n.Sel.Name] = true
			} else {
				into["."+n.Sel.Name] = true
			}
			collect(n.X, into)
			return false
		case *ast.Ident:
			into[n.Name] = true
		}
		return true
	})
}
