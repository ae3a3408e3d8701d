// Command scenarios plays what happens to a whole installation and judges it: processes
// of their own on the real services, an upstream with a real quota, users, and something
// that goes wrong.
//
//	eval "$(scripts/services up)" && cd e2e
//	go run ./scenarios --list
//	go run ./scenarios herd killed        # or: make scenarios ONLY="herd killed"
//	go run ./scenarios all                # or: make scenarios
//	go run ./scenarios --seconds 300 reads
//	go run ./scenarios observe             # or: make observe
//	go run ./scenarios --seed 7 --faults 200 torture   # or: make torture
//
// It prints figures beside their limits and a verdict for each scenario. PostgreSQL and
// Kafka are those that FRESHET_TEST_… name, with a database and topics of each
// scenario's own; Redis is its own, for it may be killed, and so is the torture's Kafka.
// What is judged is read from Kafka, the database and the upstream's own record wherever
// they know it, and not from what freshet says of itself.
//
// A further scenario is a function in the table of scenarios.go.
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

// options are the flags.
type options struct {
	seconds, users int
	document       string // of characters
	flood          string // document of what the flood refreshes
	k6             string
	brief          bool
	results        string // the file that keeps what was shown
	list           bool
	seed           uint64
	faults         int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns 0 if all limits are held, 1 if not, 2 if it was
// called wrongly.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("scenarios", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.seconds, "seconds", 30, "length of each phase that has one")
	flags.IntVar(&o.users, "users", 3000, "users at the same time (reads)")
	flags.StringVar(&o.document, "document", "item-equipment", "what users read (reads, normal): item-equipment (246 kB), stat (3 kB) or basic (1 kB)")
	flags.StringVar(&o.flood, "flood", "basic", "what the flood refreshes (reads), of the same; item-equipment takes the worker a core")
	flags.StringVar(&o.k6, "k6", "", "the k6 to use (reads; default: make k6 gets one)")
	flags.BoolVar(&o.brief, "brief", false, "do not wait until the alerts of the last outage are gone, half a minute (observe)")
	flags.StringVar(&o.results, "results", "", "a file that keeps the figures, as scenarios/RESULTS.md")
	flags.BoolVar(&o.list, "list", false, "list the scenarios and play none")
	flags.Uint64Var(&o.seed, "seed", 0, "of which the faults are made (torture; default: another one each time)")
	flags.IntVar(&o.faults, "faults", 12, "how many there are (torture)")
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
	if err == nil && (o.seconds < 6 || o.users < 1) {
		err = errors.New("a phase has at least 6 seconds, and one user")
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
		fmt.Fprintf(stderr, "scenarios: a limit is missed in: %s\n", strings.Join(missed, ", "))
		return 1
	}
	return 0
}

// runAll plays one after the other, also after one that could not be played: the
// others are not its fault.
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

// stampOf says of which release and commit the program is, and where it runs.
func stampOf(ctx context.Context, binary string, seconds int) (stamp, error) {
	release, err := exec.CommandContext(ctx, binary, "version").Output()
	if err != nil {
		return stamp{}, fmt.Errorf("freshet version: %w", err)
	}
	// Between releases the version says little.
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*").Output()
	if err == nil {
		release = append(append(release, " at "...), commit...)
	}
	// The file with the results may be another: that of the run before.
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/", ":(top,exclude)e2e/scenarios/RESULTS.md").Output()
	if err == nil && len(changed) > 0 {
		release = append(release, " WITH UNCOMMITTED CHANGES"...)
	}
	return newStamp(oneLine(string(release)), seconds), nil
}
