package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

func benchRun(t *testing.T, file, output string) (printed string) {
	t.Helper()
	var out strings.Builder
	now := run{Commit: "abc", Date: time.Unix(1e9, 0).UTC(), Cores: 2, Load: "1 2 3", Figures: map[string]figure{}}
	if err := report(file, strings.NewReader(output), &out, now); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestReport_MarksWorseFigures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	lines := func(s string) string {
		return strings.ReplaceAll("ok package\nBenchmarkMissing\n    "+s+"PASS\n", "-P", fmt.Sprint("-", runtime.GOMAXPROCS(0)))
	}
	first := benchRun(t, file, lines("BenchmarkWorker-P \t 3\t 100 events/s\t 0.50 ×bare\t 10 ns/op\t 1.00 ×off-kept\n"))
	if strings.Contains(first, "WORSE") || !strings.Contains(first, "commit abc, 2001-09-09T01:46:40Z, 2 cores, load 1 2 3") {
		t.Errorf("first run: got\n%s\nwant the commit, date, cores and load, and no mark", first)
	}
	second := benchRun(t, file, lines("BenchmarkWorker-P \t 3\t 91 events/s\t 0.44 ×bare\t 10.9 ns/op\t 1.20 ×off-kept\n"))
	for name, worse := range map[string]bool{"Worker events/s": false, "Worker ×bare": true, "Worker ns/op": false, "Worker ×off-kept": true} {
		got := ""
		for line := range strings.Lines(second) {
			if strings.HasPrefix(line, name+" ") {
				got = line
			}
		}
		if got == "" || strings.Contains(got, "WORSE") != worse {
			t.Errorf("%s: got line %q, want marked: %v", name, got, worse)
		}
	}
	if !strings.Contains(second, "4 figures, 2 worse by more than 10 %") {
		t.Errorf("second run: got\n%s\nwant 4 figures, 2 worse", second)
	}
}

func TestReport_RejectsOutputWithoutFigures(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bench.json")
	err := report(file, strings.NewReader("FAIL\n"), os.Stderr, run{Figures: map[string]figure{}})
	if err == nil || !strings.Contains(err.Error(), "no result") {
		t.Errorf("got %v, want an error about the missing results", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the file was written, want it unchanged")
	}
}
