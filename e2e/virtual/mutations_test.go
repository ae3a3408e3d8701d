package virtual

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var mutationsFlag = flag.Bool("mutations", false, "find each planted fault within ten seeds; takes about three minutes")

// mutation is a planted fault: a replacement in a file of freshet. The oracle must find it.
type mutation struct {
	name, file, old, new string
	length               string // virtual duration of the run
	check                string // name of the check that must find the mutation
}

var mutations = []mutation{
	{
		name: "lease shorter than a call", file: "limiter/scope.go",
		old: "max(p.Lease, lease).Microseconds()}\n", new: "lease.Microseconds() / 8}\n",
		length: "3h", check: "contract",
	},
	{
		name: "midnight off by one hour", file: "limiter/quota.go",
		old: "q.zone = zone\n", new: "q.zone = time.FixedZone(zone.String(), 10*60*60)\n",
		length: "3h", check: "contract",
	},
	{
		name: "retry not durable", file: "consumer/settler.go",
		old:    "if s.db.retry(ctx, opFail, func(ctx context.Context) error { return s.db.WriteFailure(ctx, row, nil) }) != nil {\n\t\treturn\n\t}\n\tend := schemas.End{Entity: row.Entity, Number: f.number, Hold: schemas.HoldRetrying",
		new:    "end := schemas.End{Entity: row.Entity, Number: f.number, Hold: schemas.HoldRetrying",
		length: "3h", check: "lost requests",
	},
}

// apply returns the path of the file in the main module, and its text with the planted fault.
func (m mutation) apply() (path, text string, err error) {
	path, err = filepath.Abs(filepath.Join("..", "..", m.file))
	if err != nil {
		return "", "", err
	}
	original, err := os.ReadFile(path)
	if n := strings.Count(string(original), m.old); err == nil && n != 1 {
		err = fmt.Errorf("%s contains %q %d times, want once; change the mutation with the code", m.file, m.old, n)
	}
	return path, strings.Replace(string(original), m.old, m.new, 1), err
}

// build builds this test with the planted fault, and returns the path of the binary.
func (m mutation) build(ctx context.Context, dir string) (string, error) {
	path, text, err := m.apply()
	if err != nil {
		return "", err
	}
	mutated, overlay, binary := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "virtual.test")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: mutated}})
	if err = errors.Join(err, os.WriteFile(mutated, []byte(text), 0o600), os.WriteFile(overlay, list, 0o600)); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "go", "test", "-tags", "synctests", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build with %q: %w\n%s", m.name, err, out)
	}
	return binary, err
}

func TestMutations_AreInTheCode(t *testing.T) {
	for _, m := range mutations {
		if _, _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestMutations_AreFoundWithinTenSeeds(t *testing.T) {
	if !*mutationsFlag {
		t.Skip("takes minutes; run `make virtual-mutations`")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			binary, err := m.build(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			for seed := 1; seed <= 10; seed++ {
				out, err := exec.CommandContext(t.Context(), binary, "-test.run", "^TestDay_", "-test.timeout", "2h",
					"-length", m.length, "-seed", fmt.Sprint(seed)).CombinedOutput()
				for line := range strings.Lines(string(out)) {
					if found := fmt.Sprintf("seed %d: %s: ", seed, m.check); err != nil && strings.Contains(line, found) {
						t.Logf("found: %s", strings.TrimSpace(line))
						return
					}
				}
				t.Logf("seed %d: not found (%v)", seed, err)
			}
			t.Errorf("%s: got no finding of %q, want one within ten seeds", m.name, m.check)
		})
	}
}
