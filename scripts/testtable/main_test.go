package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stage writes the results of one stage: the test events, and the file "seconds".
func stage(t *testing.T, results, name, events string) {
	t.Helper()
	dir := filepath.Join(results, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{"1.json": events, "seconds": "12\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// document writes a document that lists the tests that no stage runs, and returns its path.
func document(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "testing.md")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	passes = `{"Action":"pass","Package":"p","Test":"TestA"}` + "\n"
	skips  = `{"Action":"skip","Package":"p","Test":"TestA"}` + "\n"
)

func TestReport_CountsTestsOfEachStage(t *testing.T) {
	results := t.TempDir()
	stage(t, results, "test", passes+"plain line of a build\n"+`{"Action":"pass","Package":"p","Test":"TestA/sub"}`+"\n")
	var out strings.Builder
	if err := report(&out, results, []string{"test"}, document(t, "")); err != nil {
		t.Fatal(err)
	}
	if want := "1 passed, 0 failed, 0 skipped"; !strings.Contains(out.String(), want) {
		t.Errorf("report: got %q, want %q in it", out.String(), want)
	}
}

func TestReport_AcceptsTestThatAnotherStageRan(t *testing.T) {
	results := t.TempDir()
	stage(t, results, "test", skips)
	stage(t, results, "services", passes)
	if err := report(&strings.Builder{}, results, []string{"test", "services"}, document(t, "")); err != nil {
		t.Errorf("report: got error %v, want none", err)
	}
}

func TestReport_NamesTestThatNoStageRan(t *testing.T) {
	results := t.TempDir()
	stage(t, results, "test", skips)
	err := report(&strings.Builder{}, results, []string{"test"}, document(t, "nothing"))
	if err == nil || !strings.Contains(err.Error(), "p TestA") {
		t.Errorf("report: got error %v, want one that names p TestA", err)
	}
}

func TestReport_AcceptsListedTest(t *testing.T) {
	results := t.TempDir()
	stage(t, results, "test", skips)
	if err := report(&strings.Builder{}, results, []string{"test"}, document(t, "| `TestA` | by hand |")); err != nil {
		t.Errorf("report: got error %v, want none", err)
	}
}
