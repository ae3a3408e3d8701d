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

// stamp says when, where and of which release something was shown. Each row has its
// own, for rows of other runs stay.
type stamp struct{ day, machine, release string }

func (s stamp) String() string { return fmt.Sprintf("%s, %s, %s", s.day, s.machine, s.release) }

func newStamp(release string) stamp {
	machine := fmt.Sprintf("%d cores", runtime.NumCPU())
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if m := regexp.MustCompile(`MemTotal:\s+(\d+) kB`).FindSubmatch(text); m != nil {
			kilobytes, _ := strconv.Atoi(string(m[1]))
			machine += fmt.Sprintf(" and %d GB", (kilobytes+1<<19)>>20)
		}
	}
	return stamp{time.Now().UTC().Format(time.DateOnly), machine, strings.TrimPrefix(release, "freshet ")}
}

// outcome is what was shown in one run of the program.
type outcome struct {
	stamp   stamp
	results []result
}

const (
	resultsHead = `# What the scenarios showed

Written by ` + "`make scenarios`" + ` (` + "`go run ./scenarios --results scenarios/RESULTS.md …`" + `), and not to be edited. A row is of the
last run of its scenario. Numbers are those of the verification plan of adr-013. Users, the upstream and the services
share the machine with what is judged.
`
	targetsHead = `
## Targets

| target | limit | figure | shown by | verdict | run |
|---|---|---|---|---|---|
`
	scenariosHead = `
## Scenarios

| no. | scenario | what it plays | figures | limits | verdict | run |
|---|---|---|---|---|---|---|
`
)

// keep puts what was shown into a file, in place of earlier rows of the same
// scenarios.
func keep(file string, all outcome) error {
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(merge(string(before), all)), 0o600)
}

// merge returns the file's text with the rows of what was shown.
func merge(before string, all outcome) string {
	rows := readRows(before)
	for _, r := range all.results {
		sc, known := find(r.name)
		if !known { // a part of one that judges something else
			continue
		}
		verdict := "held"
		if r.missed {
			verdict = isMissed
		}
		number, figures, limits := "", []string{}, []string{}
		if sc.adr > 0 {
			number = strconv.Itoa(sc.adr)
		}
		for _, l := range r.lines {
			if l.target != "" {
				rows[l.target] = row(l.target, limitOf(l.target), l.what+": "+l.figure, r.name, l.verdict, all.stamp.String())
			}
			if l.limit != "" {
				figures, limits = append(figures, oneLine(l.what)+": "+oneLine(l.figure)), append(limits, oneLine(l.limit))
			}
		}
		rows[r.name] = row(number, r.name, sc.what, strings.Join(figures, "<br>"), strings.Join(limits, "<br>"), verdict, all.stamp.String())
	}
	var text strings.Builder
	text.WriteString(resultsHead + targetsHead)
	for _, t := range targets {
		text.WriteString(rows[t[0]])
	}
	text.WriteString(scenariosHead)
	for _, sc := range sorted() {
		text.WriteString(rows[sc.name])
	}
	return text.String()
}

func row(cells ...string) string {
	for i := range cells {
		cells[i] = oneLine(cells[i])
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// readRows returns the rows by their target or scenario.
func readRows(text string) map[string]string {
	rows := map[string]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		switch {
		case len(cells) == 8: // with what is before the first and behind the last
			rows[strings.TrimSpace(cells[1])] = line
		case len(cells) == 9:
			rows[strings.TrimSpace(cells[2])] = line
		}
	}
	return rows
}

func limitOf(target string) string {
	i := slices.IndexFunc(targets, func(t [2]string) bool { return t[0] == target })
	return targets[i][1]
}
