// Command benchall reads the output of benchmarks from its standard input, prints every figure with
// the commit, the date, the number of cores and the load average, and marks the figures that are more
// than 10 % worse than in the file of the previous run. Then it writes the file.
//
//	make bench … | go run ./scripts/benchall FILE
//
// Only runs on the same machine can be compared. Ratios within one run (units that begin with ×)
// depend least on other load.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// tolerated is how much worse a figure may be than in the previous run before it is marked.
const tolerated = 0.10

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: benchall FILE < OUTPUT_OF_BENCHMARKS")
		os.Exit(2)
	}
	if err := report(os.Args[1], os.Stdin, os.Stdout, here()); err != nil {
		fmt.Fprintln(os.Stderr, "benchall:", err)
		os.Exit(1)
	}
}

// run is the result of all benchmarks of one run.
type run struct {
	Commit  string            `json:"commit"`
	Date    time.Time         `json:"date"`
	Cores   int               `json:"cores"`
	Load    string            `json:"load"` // load averages of 1, 5 and 15 minutes; empty if unknown
	Figures map[string]figure `json:"figures"`
}

type figure struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// here returns a run without figures, on this machine and of the checked-out commit.
func here() run {
	r := run{Commit: "unknown", Date: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Figures: map[string]figure{}}
	if out, err := exec.CommandContext(context.Background(), "git", "describe", "--always", "--dirty", "--abbrev=8").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		r.Load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	return r
}

// report parses the output of benchmarks, prints the figures of the run, compares them with the file,
// and writes the file. Without figures it returns an error and leaves the file unchanged.
func report(file string, output io.Reader, to io.Writer, now run) error {
	var before run
	text, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(text, &before); err != nil {
			return fmt.Errorf("read %s: %w; delete the file to begin again", file, err)
		}
	}
	names, err := parse(output, now.Figures)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("the input has no result of a benchmark")
	}
	now.print(to, names, before)
	if text, err = json.MarshalIndent(now, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

// parse adds the figures of the output to a map, and returns their names in the order of the output.
// A name is the benchmark's name and the unit.
func parse(output io.Reader, figures map[string]figure) (names []string, err error) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		if _, err := strconv.Atoi(fields[1]); err != nil {
			continue
		}
		bench := strings.TrimSuffix(strings.TrimPrefix(fields[0], "Benchmark"), fmt.Sprint("-", runtime.GOMAXPROCS(0)))
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break
			}
			name := bench + " " + fields[i+1]
			if _, known := figures[name]; !known {
				names = append(names, name)
			}
			figures[name] = figure{value, fields[i+1]}
		}
	}
	return names, lines.Err()
}

// print prints the figures, each with the figure of the previous run.
func (r run) print(to io.Writer, names []string, before run) {
	fmt.Fprintf(to, "commit %s, %s, %d cores, load %s\n", r.Commit, r.Date.Format(time.RFC3339), r.Cores, r.Load)
	if len(before.Figures) > 0 {
		fmt.Fprintf(to, "compared with commit %s, %s, %d cores, load %s\n", before.Commit, before.Date.Format(time.RFC3339), before.Cores, before.Load)
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "benchmark and unit\tfigure\tbefore\t")
	worse := 0
	for _, name := range names {
		f, last, mark := r.Figures[name], "", ""
		if b, known := before.Figures[name]; known {
			last = format(b.Value)
			if f.isWorseThan(b) {
				worse++
				mark = "WORSE"
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", name, format(f.Value), last, mark)
	}
	_ = table.Flush()
	fmt.Fprintf(to, "%d figures, %d worse by more than %.0f %%\n", len(names), worse, 100*tolerated)
}

// isWorseThan reports whether a figure is worse than the previous one by more than `tolerated`.
func (f figure) isWorseThan(before figure) bool {
	if f.moreIsBetter() {
		return f.Value < before.Value*(1-tolerated)
	}
	return f.Value > before.Value*(1+tolerated)
}

// moreIsBetter reports whether a higher figure is better: rates, and ratios to another system. The
// ratio ×off compares a cost, with tracing and without it.
func (f figure) moreIsBetter() bool {
	return strings.HasSuffix(f.Unit, "/s") || (strings.HasPrefix(f.Unit, "×") && !strings.HasPrefix(f.Unit, "×off"))
}

func format(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) }
