package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/freshet/freshet/e2e/harness"
)

// options contains the command line flags.
type options struct {
	seconds, users int
	document       string // upstream document of the characters that users read
	flood          string // upstream document of the entities that the background load (flood) refreshes
	k6             string // path of the program k6
	brief          bool
	results        string // path of the file that keeps the results
	list           bool
	seed           uint64
	faults         int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run runs the chosen scenarios and returns the exit code: 0 if all limits hold, 1 if a limit
// is missed or a scenario fails, 2 for wrong usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("scenarios", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.seconds, "seconds", 30, "length of each phase in seconds, at least 6")
	flags.IntVar(&o.users, "users", 0, "number of concurrent users (default: 1,000 in reads, 3,000 in documents)")
	flags.StringVar(&o.document, "document", "item-equipment", "document that users read (reads, normal): item-equipment (246 kB), stat (3 kB) or basic (1 kB)")
	flags.StringVar(&o.flood, "flood", "basic", "document that the flood refreshes (reads), one of the same; item-equipment takes one core of the worker")
	flags.StringVar(&o.k6, "k6", "", "path of k6 (reads; default: installed with make k6)")
	flags.BoolVar(&o.brief, "brief", false, "do not judge the latency of new keys (hostile), and do not wait half a minute for the last outage's alerts to resolve (observe)")
	flags.StringVar(&o.results, "results", "", "file that keeps the figures, such as scenarios/RESULTS.md")
	flags.BoolVar(&o.list, "list", false, "list the scenarios and exit")
	flags.Uint64Var(&o.seed, "seed", 0, "seed of the fault plan (torture; default: random)")
	flags.IntVar(&o.faults, "faults", 12, "number of faults (torture)")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "go run ./scenarios [flags] all|SCENARIO...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if o.list {
		list(stdout)
		return 0
	}
	chosen, err := choose(flags.Args())
	if err == nil && (o.seconds < 6 || o.users < 0) {
		err = errors.New("--seconds must be at least 6, and --users must not be negative")
	}
	if err != nil {
		fmt.Fprintln(stderr, "scenarios: "+err.Error())
		flags.Usage()
		return 2
	}
	all, err := runAll(ctx, chosen, o, stdout)
	if o.results != "" && ctx.Err() == nil && len(all.results) > 0 {
		err = errors.Join(err, writeResults(o.results, all))
	}
	if err != nil {
		fmt.Fprintln(stderr, "scenarios: "+err.Error())
		return 1
	}
	var missed []string
	for _, r := range all.results {
		if r.table != nil && r.missed {
			missed = append(missed, r.name)
		}
	}
	if len(missed) > 0 {
		fmt.Fprintf(stderr, "scenarios: limits missed in: %s\n", strings.Join(missed, ", "))
		return 1
	}
	return 0
}

// runAll runs the scenarios in order. It continues after a scenario that fails.
func runAll(ctx context.Context, chosen []scenario, o options, out io.Writer) (all runResults, err error) {
	dir, err := os.MkdirTemp("", "freshet-build-")
	if err != nil {
		return all, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, err := harness.Build(ctx, dir)
	if err != nil {
		return all, err
	}
	if all.stamp, err = stampOf(ctx, binary, o.seconds); err != nil {
		return all, err
	}
	var failed []error
	for _, sc := range chosen {
		if ctx.Err() != nil {
			return all, ctx.Err()
		}
		installation, err := harness.New(ctx, out, binary)
		s := &site{Site: installation}
		if err == nil {
			fmt.Fprintf(out, "%s: %s\n", sc.title(), sc.summary)
			err = sc.run(ctx, s, o)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", sc.name, err))
			fmt.Fprintf(out, "%s %s: %v\n\n", sc.name, runFailed, err)
			s.results = append(s.results, sc.failedResults(s.results)...)
		}
		s.Close((err != nil || s.anyMissed()) && ctx.Err() == nil)
		all.results = append(all.results, s.results...)
	}
	return all, errors.Join(failed...)
}

// stampOf returns the stamp of this run: the release and commit of the binary, and the machine.
func stampOf(ctx context.Context, binary string, seconds int) (stamp, error) {
	release, err := exec.CommandContext(ctx, binary, "version").Output()
	if err != nil {
		return stamp{}, fmt.Errorf("freshet version: %w", err)
	}
	// Add the commit, because between releases the version is always v0.0.0-dev.
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*").Output()
	if err == nil {
		release = append(append(release, " at "...), commit...)
	}
	// Ignore changes of RESULTS.md, because an earlier run may have written it.
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/", ":(top,exclude)e2e/scenarios/RESULTS.md").Output()
	if err == nil && len(changed) > 0 {
		release = append(release, " WITH UNCOMMITTED CHANGES"...)
	}
	return newStamp(oneLine(string(release)), seconds), nil
}
