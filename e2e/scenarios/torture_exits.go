package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// unplannedExit is the end of a process that nobody told to end, or a start that came to nothing.
type unplannedExit struct {
	name        string
	since, at   time.Time // when it was up, or began to start; when it was found
	restartedAt time.Time // when another was up
}

// startTimeout is how long a process looks for what it needs, and ends if it is not there:
// whatever runs it starts it again.
const startTimeout = 15 * time.Second

// faultDuring says whether a fault of one of these parts met a process in a span of time, or
// ended no longer before it than that.
func (t *injector) faultDuring(who string, from, to time.Time, before time.Duration, parts ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.injected, func(d injectedFault) bool {
		return (d.victim == allProcesses || d.victim == who) && slices.Contains(parts, d.component) && d.began.Before(to) && d.ended.Add(before).After(from)
	})
}

// requiredServices are the parts without which no process starts.
var requiredServices = []string{"redis", "database", "kafka"}

// judgeExits judges the ends of processes that nobody told to end. Excused is who ended soon
// after a start at which something that it needs was away; it must say so, and there are
// no more of them than of faults that could be the reason.
func (t *injector) judgeExits(judged *table) error {
	var wrong []string
	excused := map[string]int{}
	of := slices.Clone(t.exits)
	for _, a := range t.instances {
		of = append(of, a.failedStarts...)
	}
	for _, f := range of {
		if soon := f.at.Sub(f.since) < startTimeout+time.Second; soon && t.faultDuring(f.name, f.since.Add(-startTimeout), f.at, 0, requiredServices...) {
			excused[f.name]++
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s, up at %s, gone at %s", f.name, f.since.Format(time.StampMicro), f.at.Format(time.StampMicro)))
	}
	judged.judgeZero("processes that ended by themselves", wrong)
	faults := 0
	for _, d := range t.injected {
		if slices.Contains(requiredServices, d.component) {
			faults++
		}
	}
	n, silent := 0, []string{}
	var crashed []string
	for _, a := range t.instances {
		n += excused[a.name]
		said, panics, err := scanLog(filepath.Join(t.s.Dir, a.name+".log"))
		if err != nil {
			return err
		}
		if said < excused[a.name] {
			silent = append(silent, fmt.Sprintf("%s ended %d times, and gave a reason %d times", a.name, excused[a.name], said))
		}
		crashed = append(crashed, panics...)
	}
	judged.judge("  at their start, without what they need", strconv.Itoa(n), fmt.Sprintf("<=2 for each of %d faults", faults), n <= 2*faults)
	judged.judgeZero("  of them without a reason", silent)
	judged.judgeZero("panics and races in their logs", crashed)
	return nil
}

// crashPattern is how a log tells of one, or of one that was survived.
var crashPattern = regexp.MustCompile(`^panic: |^fatal error: |WARNING: DATA RACE|"?panic"?[:=]|goroutine \d+ \[running\]`)

// scanLog counts how often a process has said why it ends, and returns the lines that
// tell of a crash.
func scanLog(log string) (said int, crashed []string, err error) {
	file, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := lines.Text()
		if strings.HasPrefix(text, "freshet: ") {
			said++
		}
		if crashPattern.MatchString(text) {
			crashed = append(crashed, fmt.Sprintf("%s: %.200s", filepath.Base(log), text))
		}
	}
	return said, crashed, lines.Err()
}

// breakerRecovery is how long it may take after a fault until all is asked for again: a breaker
// of Redis rests for half a minute.
const breakerRecovery = 35 * time.Second

// judgeFailedReads judges reads without a good answer: a process that is well answers, and it
// refuses what can't be fetched only if that failed, or something it needs was away.
func (t *injector) judgeFailedReads(judged *table, l *tortureLoad) {
	var wrong, unheard []string
	for _, r := range l.failedReads {
		text := fmt.Sprintf("%s by %s at %s: %d %s", r.key, r.query, r.asked.Format(time.StampMicro), r.status, r.reason)
		switch {
		case r.status == 0 && !t.faultDuring(r.query, r.asked, r.ended, 0, "process") && !slices.ContainsFunc(t.exits, func(f unplannedExit) bool {
			return f.name == r.query && r.asked.Before(f.restartedAt) && r.ended.After(f.at.Add(-superviseInterval)) // it is found some time after its end
		}):
			unheard = append(unheard, text)
		case r.status == 0 || strings.HasPrefix(r.reason, "HELD_"):
		case r.status != http.StatusServiceUnavailable || !t.faultDuring(r.query, r.asked, r.ended, breakerRecovery, requiredServices...):
			wrong = append(wrong, text)
		}
	}
	all := int(l.reads.Load())
	judged.judgeNone("reads that were refused without need", all, wrong)
	judged.judge("reads without an answer of a process that was well", fmt.Sprintf("%d of %d", len(unheard), all), "<=1 %", 100*len(unheard) <= all)
	judged.addExamples("without an answer", unheard)
}
