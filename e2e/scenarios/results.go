package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stamp identifies a run: date, machine, release and length of a phase. Each row of the results
// file has the stamp of its own run, because rows of earlier runs stay in the file.
type stamp struct {
	day, machine, release string
	seconds               int // length of a phase in seconds
}

func (s stamp) String() string {
	return fmt.Sprintf("%s, %s, %s, --seconds %d", s.day, s.machine, s.release, s.seconds)
}

func newStamp(release string, seconds int) stamp {
	machine := fmt.Sprintf("%d cores", runtime.NumCPU())
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if m := regexp.MustCompile(`MemTotal:\s+(\d+) kB`).FindSubmatch(text); m != nil {
			kilobytes, _ := strconv.Atoi(string(m[1]))
			machine += fmt.Sprintf(" and %d GB", (kilobytes+1<<19)>>20)
		}
	}
	return stamp{time.Now().UTC().Format(time.DateOnly), machine, strings.TrimPrefix(release, "freshet "), seconds}
}

// runResults are the results of one run of the program.
type runResults struct {
	stamp   stamp
	results []result
}

const (
	resultsHead = `# Results of the scenarios

Written by ` + "`make scenarios`" + ` (` + "`cd e2e && go run ./scenarios --results scenarios/RESULTS.md …`" + `); do not edit it. Each row shows the
last run of its scenario, with the release and the length of a phase in seconds. The numbers refer to the verification
plan of adr-013. The users, the upstream and the services share the machine with freshet.
`
	notRunYet   = "not run yet"
	runFailed   = "failed to run"
	targetsHead = `
## Targets

| target | limit | figure | scenario | verdict | run |
|---|---|---|---|---|---|
`
	scenariosHead = `
## Scenarios

| no. | scenario | description | figures | limits | verdict | run |
|---|---|---|---|---|---|---|
`
)

// writeResults writes the results of a run into a file. It replaces the rows of the scenarios of
// this run and keeps all other rows.
func writeResults(file string, all runResults) error {
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(merge(string(before), all)), 0o600)
}

// merge returns the text of the results file with the rows of this run. A row of this run
// replaces the earlier row of the same scenario.
func merge(before string, all runResults) string {
	rows := readRows(before)
	for _, r := range all.results {
		if sc, known := find(r.name); known { // the parts of observe have results, but are not scenarios and have no row
			rows.put(sc, r, all.stamp.String())
		}
	}
	var text strings.Builder
	text.WriteString(resultsHead + targetsHead)
	for _, t := range targets {
		shown := false
		for _, sc := range sorted() {
			some := rows[t[0]+"/"+sc.name]
			text.WriteString(some)
			shown = shown || some != ""
		}
		if !shown {
			text.WriteString(row(t[0], t[1], notRunYet, "", "", ""))
		}
	}
	text.WriteString(scenariosHead)
	for _, sc := range sorted() {
		if some := rows[sc.name]; some != "" {
			text.WriteString(some)
		} else if !sc.notInAll && len(sc.parts) == 0 {
			text.WriteString(row(sc.number(), sc.name, sc.summary, notRunYet, "", "", ""))
		}
	}
	return text.String()
}

// rows maps the name of a scenario to its row, and "target/scenario" to the row that contains the
// scenario's figure for that target.
type rows map[string]string

// put replaces the rows of a scenario by rows with the result r. `run` is the stamp of this run as
// text.
func (all rows) put(sc scenario, r result, run string) {
	for _, t := range targets {
		delete(all, t[0]+"/"+sc.name)
	}
	if r.table == nil {
		all[sc.name] = row(sc.number(), sc.name, sc.summary, runFailed, "", runFailed, run)
		return
	}
	verdict, what := "held", sc.summary
	if r.missed {
		verdict = isMissed
	}
	if r.latency != "" {
		what += "; a call takes " + r.latency
	}
	var figures, limits []string
	for _, l := range r.lines {
		if l.target != "" {
			all[l.target+"/"+sc.name] += row(l.target, limitOf(l.target), strings.TrimSpace(l.what)+": "+l.figure, r.name, l.verdict, run)
		}
		if l.limit != "" {
			figures, limits = append(figures, oneLine(l.what)+": "+oneLine(l.figure)), append(limits, oneLine(l.limit))
		}
	}
	all[sc.name] = row(sc.number(), r.name, what, strings.Join(figures, "<br>"), strings.Join(limits, "<br>"), verdict, run)
}

func row(cells ...string) string {
	for i := range cells {
		cells[i] = oneLine(cells[i])
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

func readRows(text string) rows {
	all := rows{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case slices.Contains(cells, notRunYet):
		case len(cells) == 8: // a row of a target: six cells, and an empty text before the first and after the last
			all[cells[1]+"/"+cells[4]] += line
		case len(cells) == 9:
			all[cells[2]] = line
		}
	}
	return all
}

func limitOf(target string) string {
	i := slices.IndexFunc(targets, func(t [2]string) bool { return t[0] == target })
	return targets[i][1]
}
