package lua_test

import (
	"context"
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

	"github.com/freshet/freshet/lua"
	"github.com/freshet/freshet/servicetest"
)

var replaceScript = servicetest.LimiterScriptFlag()

func TestMain(m *testing.M) {
	flag.Parse()
	replaceScript()
	os.Exit(m.Run())
}

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

// operators are the texts that a mutation replaces. Rounding is left out, because no caller could notice a
// microsecond.
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
	{"true", "false"},
	{"false", "true"},
	{"not ", ""},
}

// toNumber matches an addition of 0, which converts a text to a number. A subtraction does the same.
var toNumber = regexp.MustCompile(`^ \+ 0\b`)

// assignment matches a statement that a mutation can remove. The declaration of a local can't be
// removed: without it the name would be that of a global.
var assignment = regexp.MustCompile(`^\s+[\w.\[\], ]+ = [^{]*[^{(,]$`)

// allMutations returns every mutation of a file.
func allMutations(t *testing.T, file string) (all []mutation) {
	for i, line := range strings.Split(readFile(t, file), "\n") {
		code, _, _ := strings.Cut(line, "--")
		if strings.Contains(code, "error_reply") {
			continue // the words in the text of an error are no operators
		}
		for _, o := range operators {
			for at := 0; ; {
				next := strings.Index(code[at:], o[0])
				if next < 0 {
					break
				}
				at += next
				if !toNumber.MatchString(code[at:]) {
					all = append(all, mutation{file, line, code[:at] + o[1] + code[at+len(o[0]):], i + 1})
				}
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

// found reports whether a test of the binary fails with the mutation, on embedded Redis and on the Redis at
// the given address, if there is one. The binary runs in the directory of its package.
func (m mutation) found(ctx context.Context, t *testing.T, binary, dir, redis string) bool {
	t.Helper()
	text := readFile(t, m.file)
	lines := strings.Split(text, "\n")
	lines[m.line-1] = m.new
	script := filepath.Join(t.TempDir(), "script.lua")
	mutated := strings.Replace(lua.LimiterAcquire.Source, text, strings.Join(lines, "\n"), 1)
	if err := os.WriteFile(script, []byte(mutated), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // a mutation can be an endless loop
	defer cancel()
	run := exec.CommandContext(ctx, binary, "-limiter-script="+script, "-test.failfast", "-test.timeout=4m", "-test.skip="+testsOfOtherScripts)
	run.Dir = dir
	run.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FRESHET_TEST_") })
	if redis != "" {
		run.Env = append(run.Env, "FRESHET_TEST_REDIS="+redis)
	}
	return run.Run() != nil
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Each mutation of the limiter's script must be found by the tests of the script or of the limiter, or
// be listed with the reason why it changes nothing that a caller could notice.
func TestMutations_OfTheLimiterAreFound(t *testing.T) {
	if *mutationCount == 0 {
		t.Skip("takes hours; run it with make lua-mutations")
	}
	listed := readFile(t, filepath.Join("testdata", "equivalent_mutations.txt"))
	files, err := filepath.Glob("limiter_*.lua")
	if err != nil {
		t.Fatal(err)
	}
	_, buckets, _ := strings.Cut(lua.LimiterAcquire.Source, readFile(t, "limiter_slots.lua")) // the files after limiter_slots are about buckets
	var all []mutation
	for _, file := range files {
		if !strings.Contains(lua.LimiterAcquire.Source, readFile(t, file)) {
			t.Fatalf("%s is not part of limiter_acquire", file)
		}
		all = append(all, allMutations(t, file)...)
	}
	binaries := t.TempDir()
	for _, of := range []string{"lua", "limiter"} {
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", filepath.Join(binaries, of), "../"+of)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	t.Logf("%d of %d mutations, seed %d", *mutationCount, len(all), *mutationSeed)
	rng := rand.New(rand.NewPCG(*mutationSeed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all[:min(*mutationCount, len(all))] {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			_, equivalent, _ := strings.Cut(m.String(), ": ")
			if strings.Contains(listed, "\n"+equivalent+"\n") {
				t.Skip("changes nothing that a caller could notice")
			}
			packages := []string{"lua", "limiter"}
			if strings.Contains(buckets, readFile(t, m.file)) {
				slices.Reverse(packages) // most tests of buckets are in package limiter
			}
			for _, redis := range slices.Compact([]string{"", os.Getenv("FRESHET_TEST_REDIS")}) {
				for _, of := range packages {
					if m.found(t.Context(), t, filepath.Join(binaries, of), filepath.Join("..", of), redis) {
						return
					}
				}
			}
			t.Error("no test fails")
		})
	}
}
