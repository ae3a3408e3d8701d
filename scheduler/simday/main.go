// Command simday simulates some days of a source's prefetching in accelerated time. It runs the
// code of the scheduler (scheduler.Policy, scheduler.Budget, scheduler.Price), and prints how
// current the reads of the last day were. It compares three policies with the same budget: tiers,
// half the time since the last change ("change age / 2"), and adaptive intervals.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	n := flag.Int("entities", 18_000_000, "number of entities; all rates scale with it")
	days := flag.Int("days", 10, "number of simulated days; the results are of the last day")
	seed := flag.Uint64("seed", 1, "random seed")
	calls := flag.Float64("calls", 1, "factor of the call budget; at 1 each entity has 1.1 calls a day, as in adr-013")
	ahead := flag.Bool("ahead", false, "the daily pace takes the rate caps of later hours into account")
	plot := flag.String("plot", "", "write a plot (SVG) to this file")
	flag.Parse()
	if err := report(os.Stdout, *n, *days, *seed, *calls, *ahead, *plot); err != nil {
		fmt.Fprintln(os.Stderr, "simday:", err)
		os.Exit(1)
	}
}

func report(out io.Writer, n, days int, seed uint64, calls float64, ahead bool, plot string) error {
	var all []*result
	fmt.Fprintf(out, "%d entities, day %d of %d, all rates of adr-013 divided by %.4g, pace takes rate caps into account: %v, seed %d\n\n", n, days, days, fullEntities/float64(n)/calls, ahead, seed)
	fmt.Fprintln(out, "| | "+header+" |\n"+rule)
	for _, name := range policyNames {
		begun := time.Now()
		r, err := simulate(name, n, days, seed, calls, ahead)
		if err != nil {
			return err
		}
		all = append(all, r)
		fmt.Fprintf(out, "| %s | %s |\n", name, r.row())
		fmt.Fprintf(os.Stderr, "%s: %v; %s\n", name, time.Since(begun).Round(time.Second), r.totals())
	}
	if plot == "" {
		return nil
	}
	return os.WriteFile(plot, plotSVG(all), 0o600)
}
