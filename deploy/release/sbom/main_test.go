package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// billOfTest returns the SBOM of the test binary, decoded and as text.
func billOfTest(t *testing.T, version string) (bom cdx.BOM, text []byte) {
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
	bom, _ := billOfTest(t, "v1.2.3")
	if c := bom.Metadata.Component; c.PackageURL != "pkg:golang/github.com/freshet/freshet/deploy/release@v1.2.3" || c.Type != cdx.ComponentTypeApplication {
		t.Errorf("component: got %+v, want this program at v1.2.3", c)
	}
	info, _ := debug.ReadBuildInfo()
	want := map[string]bool{"std": true}
	for _, m := range info.Deps {
		want[m.Path] = true
	}
	if !want["github.com/CycloneDX/cyclonedx-go"] || want["github.com/goreleaser/goreleaser/v2"] {
		t.Fatalf("linked modules: got %v, want cyclonedx-go and not goreleaser", want)
	}
	for _, c := range *bom.Components {
		if !want[c.Name] {
			t.Errorf("component %s: got an unlinked or duplicate module", c.Name)
		}
		delete(want, c.Name)
		if c.Name != "std" && (c.Hashes == nil || len((*c.Hashes)[0].Value) != 64) {
			t.Errorf("component %s: got no checksum, want one", c.Name)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing components: got %v, want none", want)
	}
	if refs := *(*bom.Dependencies)[0].Dependencies; len(refs) != len(*bom.Components) {
		t.Errorf("dependencies: got %d, want %d", len(refs), len(*bom.Components))
	}
}

func TestBill_IsReproducible(t *testing.T) {
	_, one := billOfTest(t, "v1.2.3")
	_, other := billOfTest(t, "v1.2.3")
	if !bytes.Equal(one, other) {
		t.Error("two bills of one program: got different texts, want equal ones")
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
			t.Errorf("dependency of %s: got %+v, %v, want %s", c.module.Path, part, err, c.url)
		}
	}
	if _, err := dependency(&debug.Module{Path: "a", Sum: "h1:?"}); err == nil {
		t.Error("invalid checksum: got no error, want one")
	}
}

func TestRun_RejectsOtherFiles(t *testing.T) {
	if err := run([]string{"main.go"}, "", ""); err == nil {
		t.Error("main.go: got no error, want one")
	}
	if err := run(nil, "", ""); err == nil {
		t.Error("no arguments: got no error, want one")
	}
}
