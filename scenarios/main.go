// Command scenarios plays what happens to a whole installation, with many users, and
// judges it: processes of their own on the real services, an upstream with a real
// quota, users, and something that goes wrong.
//
//	eval "$(scripts/services up)"
//	go run ./scenarios reads               # or: make scenario-reads
//	go run ./scenarios --seconds 300 reads
//	go run ./scenarios observe             # or: make observe
//
// It prints figures beside their limits and a verdict for each phase, and exits with 1
// if one is missed. reads has users by k6, and what counts as success is said at the
// head of its script (reads.js); observe has a Prometheus, and judges what it sees. PostgreSQL and Kafka are those that FRESHET_TEST_… name, with a
// database and topics of the scenario's own; Redis is its own, for it is killed.
//
// A further scenario is a function in the table below.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// options are the flags.
type options struct {
	seconds, users int
	document       string // of characters
	flood          string // document of what the flood refreshes
	k6             string
	brief          bool
}

// scenarios by name. One returns errMissed when it ran and a limit was missed.
var scenarios = map[string]func(ctx context.Context, s *site, o options) error{
	"observe": observe,
	"reads":   reads,
}

var errMissed = errors.New("a limit is missed")

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
	flags.IntVar(&o.seconds, "seconds", 30, "length of each phase")
	flags.IntVar(&o.users, "users", 3000, "users at the same time (reads)")
	flags.StringVar(&o.document, "document", "item-equipment", "what users read (reads): item-equipment (246 kB), stat (3 kB) or basic (1 kB)")
	flags.StringVar(&o.flood, "flood", "basic", "what the flood refreshes (reads), of the same; item-equipment takes the worker a core")
	flags.StringVar(&o.k6, "k6", "", "the k6 to use (reads; default: make k6 gets one)")
	flags.BoolVar(&o.brief, "brief", false, "do not wait until the alerts of the last outage are gone, half a minute (observe)")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "go run ./scenarios [flags] %s\n", strings.Join(slices.Sorted(maps.Keys(scenarios)), "|"))
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	play, known := scenarios[flags.Arg(0)]
	if !known || flags.NArg() != 1 || o.seconds < 6 || o.users < 1 {
		fmt.Fprintln(stderr, "scenarios: name one of those below; a phase has at least 6 seconds, and one user")
		flags.Usage()
		return 2
	}
	s, err := newSite(ctx, stdout)
	if err == nil {
		err = play(ctx, s, o)
	}
	s.close(err != nil && ctx.Err() == nil)
	if err != nil {
		fmt.Fprintln(stderr, "scenarios: "+err.Error())
		return 1
	}
	return 0
}
