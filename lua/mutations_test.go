package lua_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	mutationCount = flag.Int("mutations", 0, "how many random mutations of the script limiter_acquire are tested; about half a minute each")
	mutationSeed  = flag.Uint64("mutation-seed", 1, "seed that selects the mutations")
)

// mutation is a change of one line of a script, which the tests must find.
type mutation struct {
	file, old, new string
	line           int
}

func (m mutation) String() string {
	return fmt.Sprintf("%s:%d: %s => %s", m.file, m.line, strings.TrimSpace(m.old), strings.TrimSpace(m.new))
}

// operators are the texts that a mutation replaces.
var operators = [][2]string{
	{" < ", " <= "},
	{" <= ", " < "},
	{" > ", " >= "},
	{" >= ", " > "},
	{" == ", " ~= "},
	{" ~= ", " == "},
	{" + ", " - "},
	{" - ", " + "},
	{" * ", " / "},
	{" / ", " * "},
	{" and ", " or "},
	{" or ", " and "},
	{"max(", "min("},
	{"min(", "max("},
	{"ceil(", "floor("},
	{"true", "false"},
	{"false", "true"},
	{"not ", ""},
}

// assignment matches a statement that a mutation can remove. The declaration of a local can't be
// removed: without it the name would be that of a global.
var assignment = regexp.MustCompile(`^\s+[\w.\[\], ]+ = [^{]*[^{(,]$`)

// allMutations returns every mutation of a file.
func allMutations(t *testing.T, file string) (all []mutation) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		code, _, _ := strings.Cut(line, "--")
		for _, o := range operators {
			for at := 0; ; {
				next := strings.Index(code[at:], o[0])
				if next < 0 {
					break
				}
				at += next
				all = append(all, mutation{file, line, code[:at] + o[1] + code[at+len(o[0]):], i + 1})
				at += len(o[0])
			}
		}
		if assignment.MatchString(strings.TrimRight(code, " ")) && !strings.Contains(code, "local ") {
			all = append(all, mutation{file, line, "", i + 1})
		}
	}
	return all
}

const testsOfOtherScripts = "^Test(ADR|Client|Coalesce|Model|Mutations|Request)"

// found reports whether the tests of a package fail with the mutation.
func (m mutation) found(ctx context.Context, t *testing.T, dir, of string) bool {
	t.Helper()
	text, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	lines[m.line-1] = m.new
	mutated, overlay, binary := filepath.Join(dir, m.file), filepath.Join(dir, "overlay.json"), filepath.Join(dir, of+".test")
	original, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{original: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{mutated: strings.Join(lines, "\n"), overlay: string(replaced)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, "../"+of)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // a mutation can be an endless loop
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-test.failfast", "-test.count=1", "-test.timeout=4m", "-test.skip", testsOfOtherScripts)
	run.Dir = filepath.Join(filepath.Dir(original), "..", of)
	run.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FRESHET_TEST_") })
	return run.Run() != nil
}

// Each mutation of the limiter's script must be found by the tests of the script or of the limiter, or
// be listed with the reason why it changes nothing that a caller could notice.
func TestMutations_OfTheLimiterAreFound(t *testing.T) {
	if *mutationCount == 0 {
		t.Skip("takes hours; run it with make lua-mutations")
	}
	listed, err := os.ReadFile(filepath.Join("testdata", "equivalent_mutations.txt"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("limiter_*.lua")
	if err != nil || len(files) != 6 {
		t.Fatalf("files of limiter_acquire: got %v, %v; want 6", files, err)
	}
	var all []mutation
	for _, file := range files {
		all = append(all, allMutations(t, file)...)
	}
	t.Logf("%d of %d mutations, seed %d", *mutationCount, len(all), *mutationSeed)
	rng := rand.New(rand.NewPCG(*mutationSeed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all[:min(*mutationCount, len(all))] {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			_, equivalent, _ := strings.Cut(m.String(), ": ")
			if strings.Contains(string(listed), equivalent+"\n") {
				t.Skip("changes nothing that a caller could notice")
			}
			dir, packages := t.TempDir(), []string{"lua", "limiter"}
			if m.file == "limiter_buckets.lua" || m.file == "limiter_grant.lua" {
				slices.Reverse(packages) // most tests of buckets are in package limiter
			}
			if !slices.ContainsFunc(packages, func(of string) bool { return m.found(t.Context(), t, dir, of) }) {
				t.Error("no test fails")
			}
		})
	}
}
