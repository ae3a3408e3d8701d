// Command simday plays days of a source's prefetch in accelerated time, by the very code
// that the scheduler runs (scheduler.Policy, scheduler.Budget, scheduler.Price), and
// says what readers saw on the last of them: by tiers, by half the age of the last
// change, and adaptively, at the same budget.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

func main() {
	n := flag.Int("entities", 18_000_000, "how many entities there are; every rate follows")
	days := flag.Int("days", 10, "how many days are played; the last one is judged")
	seed := flag.Uint64("seed", 1, "chance")
	calls := flag.Float64("calls", 1, "how many calls there are beside adr-013's, of which each entity has 1.1 a day")
	ahead := flag.Bool("ahead", false, "the day's pace looks ahead to the hours' rate caps")
	plot := flag.String("plot", "", "write a plot (SVG) to this file")
	flag.Parse()
	if err := report(os.Stdout, *n, *days, *seed, *calls, *ahead, *plot); err != nil {
		fmt.Fprintln(os.Stderr, "simday:", err)
		os.Exit(1)
	}
}

func report(out io.Writer, n, days int, seed uint64, calls float64, ahead bool, plot string) error {
	var all []*result
	fmt.Fprintf(out, "%d entities, day %d of %d, all rates adr-013's / %.4g, the day's pace looks ahead: %v, seed %d\n\n", n, days, days, full/float64(n)/calls, ahead, seed)
	fmt.Fprintln(out, "| | "+header+" |\n"+rule)
	for _, name := range contestants {
		begun := time.Now()
		r, err := play(name, n, days, seed, calls, ahead)
		if err != nil {
			return err
		}
		all = append(all, r)
		fmt.Fprintf(out, "| %s | %s |\n", name, r.row())
		fmt.Fprintf(os.Stderr, "%s: %v; %s\n", name, time.Since(begun).Round(time.Second), r.more())
	}
	if plot == "" {
		return nil
	}
	return os.WriteFile(plot, drawing(all), 0o600)
}
