// Command testtable prints a table of the tests in each stage of continuous integration. Each stage
// writes a folder with the events of its test runs (go test -json, one file per run) and a file
// "seconds" with its duration. The command fails if a test was skipped in every stage and
// docs/testing.md does not list it.
//
//	go run ./scripts/testtable RESULTS check test test-services e2e
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: testtable RESULTS STAGE...")
		os.Exit(2)
	}
	if err := report(os.Stdout, os.Args[1], os.Args[2:], filepath.Join("docs", "testing.md")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// outcome is the outcome of one top-level test in one stage.
type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
}

// report prints one line for each stage and the totals. It returns an error that names the tests
// that were skipped in every stage and are not listed in the file `document`.
func report(out io.Writer, results string, stages []string, document string) error {
	listed, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	ran, skippedTests := map[string]bool{}, map[string]bool{}
	var total struct{ passed, failed, skipped int }
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "stage\tseconds\ttests run\tskipped\t")
	for _, stage := range stages {
		outcomes, err := read(filepath.Join(results, stage))
		if err != nil {
			return err
		}
		seconds, err := os.ReadFile(filepath.Join(results, stage, "seconds"))
		if err != nil {
			return err
		}
		count := map[outcome]int{}
		for test, o := range outcomes {
			count[o]++
			if o == skipped {
				skippedTests[test] = true
			} else {
				ran[test] = true
			}
		}
		total.passed += count[passed]
		total.failed += count[failed]
		total.skipped += count[skipped]
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t\n", stage, strings.TrimSpace(string(seconds)), count[passed]+count[failed], count[skipped])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped\n", total.passed, total.failed, total.skipped)
	var unknown []string
	for _, test := range slices.Sorted(maps.Keys(skippedTests)) {
		_, name, _ := strings.Cut(test, " ")
		if !ran[test] && !strings.Contains(string(listed), "`"+name+"`") {
			unknown = append(unknown, test)
		}
	}
	if len(unknown) > 0 {
		return fmt.Errorf("every stage skipped these tests, and %s does not list them; run them in a stage, or list them with the command that runs them:\n  %s",
			document, strings.Join(unknown, "\n  "))
	}
	return nil
}

// read returns the outcome of each top-level test of a stage. A key of the map is the test's package
// and name, with a space between them. A test in several runs of the stage counts as skipped only if
// all of these runs skipped it.
func read(dir string) (map[string]outcome, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	all := map[string]outcome{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		err = errors.Join(addEvents(all, f), f.Close())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, nil
}

// addEvents reads a stream of test events and adds the outcomes of top-level tests to `all`.
func addEvents(all map[string]outcome, events io.Reader) error {
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // skips a line that is no event: go build writes plain text between the events
		}
		o := outcome(e.Action)
		if e.Test == "" || strings.Contains(e.Test, "/") || (o != passed && o != failed && o != skipped) {
			continue
		}
		name := e.Package + " " + e.Test
		if before, known := all[name]; !known || before == skipped {
			all[name] = o
		}
	}
	return lines.Err()
}
