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

// unplannedExit is the end of a process that no fault has killed, or a start that failed.
type unplannedExit struct {
	name        string
	since, at   time.Time // time of the start; time at which supervise found that the process had ended
	restartedAt time.Time // time at which the replacement of the process was ready
}

// startTimeout is how long a starting process waits for its services before it exits. A
// supervisor is expected to restart it.
const startTimeout = 15 * time.Second

// faultDuring reports whether a fault of one of the components affected the process "name"
// between the times "from" and "to". A fault also counts if it ended earlier than "from" by less
// than the duration `before`.
func (t *injector) faultDuring(name string, from, to time.Time, before time.Duration, components ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.injected, func(d injectedFault) bool {
		return (d.victim == allProcesses || d.victim == name) && slices.Contains(components, d.component) && d.began.Before(to) && d.ended.Add(before).After(from)
	})
}

// requiredServices are the components without which no process starts.
var requiredServices = []string{"redis", "database", "kafka"}

// judgeExits judges the processes that ended although no fault killed them. An exit soon after the
// start of the process is allowed if a required service was unavailable during the start or shortly
// before it. The process must have logged the reason. Each fault may cause at most two of these
// exits.
func (t *injector) judgeExits(judged *table) error {
	var wrong []string
	excused := map[string]int{}
	exits := slices.Clone(t.exits)
	for _, a := range t.instances {
		exits = append(exits, a.failedStarts...)
	}
	for _, f := range exits {
		if soon := f.at.Sub(f.since) < startTimeout+time.Second; soon && t.faultDuring(f.name, f.since.Add(-startTimeout), f.at, 0, requiredServices...) {
			excused[f.name]++
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s, started at %s, ended at %s", f.name, f.since.Format(time.StampMicro), f.at.Format(time.StampMicro)))
	}
	judged.judgeZero("processes that ended without a fault", wrong)
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
		reasons, panics, err := scanLog(filepath.Join(t.s.Dir, a.name+".log"))
		if err != nil {
			return err
		}
		if reasons < excused[a.name] {
			silent = append(silent, fmt.Sprintf("%s ended %d times and logged %d reasons", a.name, excused[a.name], reasons))
		}
		crashed = append(crashed, panics...)
	}
	judged.judge("  at their start, without a required service", strconv.Itoa(n), fmt.Sprintf("<=2 for each of %d faults", faults), n <= 2*faults)
	judged.judgeZero("  without a logged reason", silent)
	judged.judgeZero("panics and data races in the logs", crashed)
	return nil
}

// crashPattern matches log lines that show a panic (even a recovered one) or a data race.
var crashPattern = regexp.MustCompile(`^panic: |^fatal error: |WARNING: DATA RACE|"?panic"?[:=]|goroutine \d+ \[running\]`)

// scanLog counts the log lines with which a process reported why it ends, and returns the lines
// that show a crash.
func scanLog(log string) (reasons int, crashed []string, err error) {
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
			reasons++
		}
		if crashPattern.MatchString(text) {
			crashed = append(crashed, fmt.Sprintf("%s: %.200s", filepath.Base(log), text))
		}
	}
	return reasons, crashed, lines.Err()
}

// breakerRecovery is the maximum time after a fault until requests are accepted again. The
// circuit breaker of Redis stays open for up to half a minute of this time.
const breakerRecovery = 35 * time.Second

// judgeFailedReads judges the failed reads. A read without a response is allowed only if a fault
// affected its query service. A rejected read is allowed only if its entity was held or a required
// service was unavailable.
func (t *injector) judgeFailedReads(judged *table, l *tortureLoad) {
	var wrong, noResponse []string
	for _, r := range l.failedReads {
		text := fmt.Sprintf("%s by %s at %s: %d %s", r.key, r.query, r.asked.Format(time.StampMicro), r.status, r.reason)
		switch {
		case r.status == 0 && !t.faultDuring(r.query, r.asked, r.ended, 0, "process") && !slices.ContainsFunc(t.exits, func(f unplannedExit) bool {
			return f.name == r.query && r.asked.Before(f.restartedAt) && r.ended.After(f.at.Add(-superviseInterval)) // supervise may find an ended process late, so f.at may be up to superviseInterval too late
		}):
			noResponse = append(noResponse, text)
		case r.status == 0 || strings.HasPrefix(r.reason, "HELD_"):
		case r.status != http.StatusServiceUnavailable || !t.faultDuring(r.query, r.asked, r.ended, breakerRecovery, requiredServices...):
			wrong = append(wrong, text)
		}
	}
	all := int(l.reads.Load())
	judged.judgeNone("reads rejected without a cause", all, wrong)
	judged.judge("reads without a response from a healthy process", fmt.Sprintf("%d of %d", len(noResponse), all), "<=1 %", 100*len(noResponse) <= all)
	judged.addExamples("without a response", noResponse)
}
