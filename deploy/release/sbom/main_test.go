package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// told returns the bill of this test's own program, and its text.
func told(t *testing.T, version string) (bom cdx.BOM, text []byte) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "bom.json")
	if err := run([]string{program}, version, to); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(to); err != nil {
		t.Fatal(err)
	}
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	return bom, text
}

func TestBill_ListsLinkedModulesOnly(t *testing.T) {
	bom, _ := told(t, "v1.2.3")
	if c := bom.Metadata.Component; c.PackageURL != "pkg:golang/github.com/freshet/freshet/deploy/release@v1.2.3" || c.Type != cdx.ComponentTypeApplication {
		t.Errorf("it is of %+v", c)
	}
	info, _ := debug.ReadBuildInfo()
	want := map[string]bool{"std": true}
	for _, m := range info.Deps {
		want[m.Path] = true
	}
	if !want["github.com/CycloneDX/cyclonedx-go"] || want["github.com/goreleaser/goreleaser/v2"] {
		t.Fatalf("this program is not linked as was thought: %v", want)
	}
	for _, c := range *bom.Components {
		if !want[c.Name] {
			t.Errorf("%s was not linked, or stands twice", c.Name)
		}
		delete(want, c.Name)
		if c.Name != "std" && (c.Hashes == nil || len((*c.Hashes)[0].Value) != 64) {
			t.Errorf("%s has no checksum", c.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("%v are missing", want)
	}
	if refs := *(*bom.Dependencies)[0].Dependencies; len(refs) != len(*bom.Components) {
		t.Errorf("the program leads to %d of %d", len(refs), len(*bom.Components))
	}
}

func TestBill_IsReproducible(t *testing.T) {
	_, one := told(t, "v1.2.3")
	_, other := told(t, "v1.2.3")
	if !bytes.Equal(one, other) {
		t.Error("two bills of one program differ")
	}
}

func TestDependency_ReturnsReplacement(t *testing.T) {
	for _, c := range []struct {
		module debug.Module
		url    string
		sums   bool
	}{
		{debug.Module{Path: "a.example/a", Version: "v1.0.0+incompatible", Sum: "h1:AAAA"}, "pkg:golang/a.example/a@v1.0.0%2Bincompatible", true},
		{debug.Module{Path: "a.example/a", Version: "v1.0.0", Sum: "h1:AAAA", Replace: &debug.Module{Path: "b.example/b", Version: "v2.0.0", Sum: "h1:AAAA"}}, "pkg:golang/b.example/b@v2.0.0", true},
		{debug.Module{Path: "a.example/a", Version: "v1.0.0", Replace: &debug.Module{Path: "./b"}}, "pkg:golang/./b@", false},
	} {
		part, err := dependency(&c.module)
		if err != nil || part.PackageURL != c.url || (part.Hashes != nil) != c.sums {
			t.Errorf("%+v, %v", part, err)
		}
	}
	if _, err := dependency(&debug.Module{Path: "a", Sum: "h1:?"}); err == nil {
		t.Error("a checksum that is none is taken")
	}
}

func TestRun_RejectsOtherFiles(t *testing.T) {
	if err := run([]string{"main.go"}, "", ""); err == nil {
		t.Error("main.go is taken for a program")
	}
	if err := run(nil, "", ""); err == nil {
		t.Error("no program is taken for one")
	}
}
