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

// fall is the end of a process that nobody told to end, or a start that came to nothing.
type fall struct {
	who      string
	from, at time.Time // when it was up, or began to start; when it was found
	back     time.Time // when another was up
}

// starting is how long a process looks for what it needs, and ends if it is not there:
// whatever runs it starts it again.
const starting = 15 * time.Second

// hurtIn says whether a fault of one of these parts met a process in a span of time, or
// ended no longer before it than that.
func (t *torturer) hurtIn(who string, from, to time.Time, before time.Duration, parts ...string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.done, func(d doneHurt) bool {
		return (d.victim == everyone || d.victim == who) && slices.Contains(parts, d.part) && d.began.Before(to) && d.ended.Add(before).After(from)
	})
}

// needed are the parts without which no process starts.
var needed = []string{"redis", "database", "kafka"}

// unasked judges the ends of processes that nobody told to end. Excused is who ended soon
// after a start at which something that it needs was away; it must say so, and there are
// no more of them than of faults that could be the reason.
func (t *torturer) unasked(judged *table) error {
	var wrong []string
	excused := map[string]int{}
	of := slices.Clone(t.fell)
	for _, a := range t.cast {
		of = append(of, a.missed...)
	}
	for _, f := range of {
		if soon := f.at.Sub(f.from) < starting+time.Second; soon && t.hurtIn(f.who, f.from.Add(-starting), f.at, 0, needed...) {
			excused[f.who]++
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s, up at %s, gone at %s", f.who, f.from.Format(time.StampMicro), f.at.Format(time.StampMicro)))
	}
	judged.nothing("processes that ended by themselves", wrong)
	faults := 0
	for _, d := range t.done {
		if slices.Contains(needed, d.part) {
			faults++
		}
	}
	n, silent := 0, []string{}
	var crashed []string
	for _, a := range t.cast {
		n += excused[a.name]
		said, panics, err := lastWords(filepath.Join(t.s.Dir, a.name+".log"))
		if err != nil {
			return err
		}
		if said < excused[a.name] {
			silent = append(silent, fmt.Sprintf("%s ended %d times, and gave a reason %d times", a.name, excused[a.name], said))
		}
		crashed = append(crashed, panics...)
	}
	judged.judge("  at their start, without what they need", strconv.Itoa(n), fmt.Sprintf("<=2 for each of %d faults", faults), n <= 2*faults)
	judged.nothing("  of them without a reason", silent)
	judged.nothing("panics and races in their logs", crashed)
	return nil
}

// crash is how a log tells of one, or of one that was survived.
var crash = regexp.MustCompile(`^panic: |^fatal error: |WARNING: DATA RACE|"?panic"?[:=]|goroutine \d+ \[running\]`)

// lastWords counts how often a process has said why it ends, and returns the lines that
// tell of a crash.
func lastWords(log string) (said int, crashed []string, err error) {
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
		if crash.MatchString(text) {
			crashed = append(crashed, fmt.Sprintf("%s: %.200s", filepath.Base(log), text))
		}
	}
	return said, crashed, lines.Err()
}

// resting is how long it may take after a fault until all is asked for again: a breaker
// of Redis rests for half a minute.
const resting = 35 * time.Second

// refusals judges reads without a good answer: a process that is well answers, and it
// refuses what can't be fetched only if that failed, or something it needs was away.
func (t *torturer) refusals(judged *table, l *load) {
	var wrong, unheard []string
	for _, r := range l.refused {
		text := fmt.Sprintf("%s by %s at %s: %d %s", r.key, r.query, r.asked.Format(time.StampMicro), r.status, r.reason)
		switch {
		case r.status == 0 && !t.hurtIn(r.query, r.asked, r.ended, 0, "process") && !slices.ContainsFunc(t.fell, func(f fall) bool {
			return f.who == r.query && r.asked.Before(f.back) && r.ended.After(f.at.Add(-lookAfter)) // it is found some time after its end
		}):
			unheard = append(unheard, text)
		case r.status == 0 || strings.HasPrefix(r.reason, "HELD_"):
		case r.status != http.StatusServiceUnavailable || !t.hurtIn(r.query, r.asked, r.ended, resting, needed...):
			wrong = append(wrong, text)
		}
	}
	all := int(l.reads.Load())
	judged.none("reads that were refused without need", all, wrong)
	judged.judge("reads without an answer of a process that was well", fmt.Sprintf("%d of %d", len(unheard), all), "<=1 %", 100*len(unheard) <= all)
	judged.some("without an answer", unheard)
}
