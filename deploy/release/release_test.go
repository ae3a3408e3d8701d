package release

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

const root = "../.."

func text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".goreleaser.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// read decodes .goreleaser.yaml like goreleaser, with an error for unknown fields.
func read(t *testing.T) config.Project {
	t.Helper()
	p, err := config.LoadReader(strings.NewReader(text(t)))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConfig_RejectsUnknownFields(t *testing.T) {
	for _, s := range []struct{ old, now string }{
		{"version: 2", "version: 2\nversion: 2"},
		{"mod_timestamp:", "mod_time:"},
		{"builds_info:", "build_info:"},
		{"documents:", "document:"},
		{"signature:", "signatures:"},
		{"platforms: [linux/amd64, linux/arm64]", "platforms: {linux: amd64}"},
		{"algorithm:", "algorithms:"},
	} {
		broken := strings.Replace(text(t), s.old, s.now, 1)
		if _, err := config.LoadReader(strings.NewReader(broken)); broken == text(t) || err == nil {
			t.Errorf("%q instead of %q: got no error, want one", s.now, s.old)
		}
	}
}

func TestBuilds_AreStaticAndReproducible(t *testing.T) {
	p := read(t)
	if p.Version != 2 || len(p.Builds) != 2 || len(p.Archives) != 1 || len(p.NFPMs) != 1 {
		t.Fatalf("got version %d, %d builds, %d archives, %d packages, want 2, 2, 1, 1", p.Version, len(p.Builds), len(p.Archives), len(p.NFPMs))
	}
	for _, b := range p.Builds {
		if !slices.Contains(b.Env, "CGO_ENABLED=0") || !slices.Contains(b.Flags, "-trimpath") || b.ModTimestamp != "{{ .CommitTimestamp }}" || len(b.Ldflags) != 1 {
			t.Errorf("build %s: got env %v, flags %v, mod_timestamp %q, ldflags %q; want CGO_ENABLED=0, -trimpath, the commit's, one", b.ID, b.Env, b.Flags, b.ModTimestamp, b.Ldflags)
		}
	}
	times := []string{p.Archives[0].BuildsInfo.MTime, p.NFPMs[0].MTime}
	for _, f := range p.Archives[0].Files {
		times = append(times, f.Info.MTime)
	}
	for _, f := range p.NFPMs[0].Contents {
		times = append(times, f.FileInfo.MTime)
	}
	for _, time := range times {
		if time != "{{ .CommitDate }}" {
			t.Errorf("mtime of files in archives: got %q, want the commit's date", time)
		}
	}
}

// The programs in archives and packages have the commands dev and simulate. The program in the image
// does not have these commands.
func TestBuilds_OnlyTheImageIsForProduction(t *testing.T) {
	p := read(t)
	if b := p.Builds[0]; b.ID != "complete" || len(b.Tags) > 0 || !slices.Equal(b.Targets, []string{"linux_amd64_v1", "linux_arm64_v8.0", "darwin_arm64_v8.0"}) {
		t.Errorf("first build: got %s, tags %v, targets %v; want complete, none, Linux and macOS", b.ID, b.Tags, b.Targets)
	}
	if b := p.Builds[1]; b.ID != "production" || !slices.Equal(b.Tags, []string{"production"}) || !slices.Equal(b.Targets, []string{"linux_amd64_v1", "linux_arm64_v8.0"}) {
		t.Errorf("second build: got %s, tags %v, targets %v; want production, [production], Linux", b.ID, b.Tags, b.Targets)
	}
	for what, ids := range map[string][]string{"archives": p.Archives[0].IDs, "packages": p.NFPMs[0].IDs, "Homebrew": p.Casks[0].IDs} {
		if !slices.Equal(ids, []string{"complete"}) {
			t.Errorf("builds of %s: got %v, want [complete]", what, ids)
		}
	}
	if ids := p.DockersV2[0].IDs; !slices.Equal(ids, []string{"production"}) {
		t.Errorf("builds of the image: got %v, want [production]", ids)
	}
}

func TestRelease_FilesExist(t *testing.T) {
	p := read(t)
	patterns := []string{p.Builds[0].Main, p.DockersV2[0].Dockerfile}
	for _, f := range p.Archives[0].Files {
		patterns = append(patterns, f.Source)
	}
	for _, f := range p.NFPMs[0].Contents {
		patterns = append(patterns, f.Source)
	}
	for _, pattern := range patterns {
		if found, err := filepath.Glob(filepath.Join(root, pattern)); err != nil || len(found) == 0 {
			t.Errorf("files %s: got none, %v, want some", pattern, err)
		}
	}
}

func TestRelease_HasSBOMsAndSignatures(t *testing.T) {
	p := read(t)
	var builds []string
	for _, s := range p.SBOMs {
		builds = append(builds, s.IDs...)
		if s.Artifacts != "binary" || !slices.Contains(s.Args, "$artifact") || !slices.Contains(s.Args, "$document") {
			t.Errorf("sbom %s: got %+v, want one for each binary with $artifact and $document", s.ID, s)
		}
		if hook := p.Before.Hooks[0]; !strings.Contains(hook, "-o ../../bin/sbom") || s.Cmd != "../bin/sbom" {
			t.Errorf("command of sbom %s: got %s built by %s, want ../bin/sbom", s.ID, s.Cmd, hook)
		}
	}
	if !slices.Equal(builds, []string{"complete", "production"}) {
		t.Errorf("builds with an SBOM: got %v, want complete and production", builds)
	}
	// The signature of the checksum file covers all uploaded files, because the file contains their
	// checksums.
	if len(p.Signs) != 1 || p.Signs[0].Artifacts != "checksum" || p.Checksum.Disable {
		t.Errorf("signs: got %+v, want one for the checksums", p.Signs)
	}
	image := p.DockersV2[0]
	if image.SBOM != "true" || !slices.Contains(image.Flags, "--provenance=mode=max") || len(p.DockerSigns) != 1 {
		t.Errorf("image: got %+v, signed %+v, want an SBOM, provenance and one signature", image, p.DockerSigns)
	}
}
