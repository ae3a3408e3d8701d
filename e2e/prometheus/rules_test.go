package prometheus

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/freshet/freshet/servicetest"
)

func TestRules_PassTheirCases(t *testing.T) {
	promtool := servicetest.Program(t, "promtool", "prometheus")
	files, err := filepath.Glob("../../deploy/prometheus/tests/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("cases of the rules: got %d files, error %v; want some", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
				t.Errorf("promtool test rules %s: got %v, want success\n%s", file, err, out)
			}
		})
	}
}
