package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// line is one line of a table: a measured figure, its limit if it has one, and the verdict.
type line struct {
	what, figure, limit, verdict string
	target                       string // the target in adr-013 that the figure is measured for, or empty
}

// The verdicts about a figure with a limit.
const (
	isHeld   = "ok"
	isMissed = "MISSED"
)

// table collects the figures of a scenario and records whether any limit was missed.
type table struct {
	lines  []line
	note   string // text that is printed below the lines of the table
	missed bool
}

// report adds a figure without a limit.
func (t *table) report(what, format string, args ...any) {
	t.lines = append(t.lines, line{what: what, figure: fmt.Sprintf(format, args...)})
}

// judge adds a figure with a limit. held reports whether the figure is within the limit. If it is
// not, the whole table counts as missed.
func (t *table) judge(what, figure, limit string, held bool) {
	verdict := isHeld
	if !held {
		verdict, t.missed = isMissed, true
	}
	t.lines = append(t.lines, line{what: what, figure: figure, limit: limit, verdict: verdict})
}

// judgeEqual adds a number that must equal `want`.
func (t *table) judgeEqual(what string, n, want int) {
	t.judge(what, strconv.Itoa(n), "="+strconv.Itoa(want), n == want)
}

// judgeBelow adds a duration that must be below the limit.
func (t *table) judgeBelow(what string, took, limit time.Duration) {
	t.judge(what, formatDuration(took), "<"+limit.Round(10*time.Millisecond).String(), took < limit)
}

// markTarget marks the line that was added last as the figure that is measured for a target.
func (t *table) markTarget(name string) { t.lines[len(t.lines)-1].target = name }

// judgeThresholds adds a metric of k6. Its limits are the thresholds of the k6 script.
func (t *table) judgeThresholds(sum summary, metric, what, figure string) {
	m, ok := sum.Metrics[metric]
	if !ok {
		t.judge(what, "none", "some", false) // k6 made no request of this kind, so the metric has no value; that counts as a missed limit
		return
	}
	if len(m.Thresholds) == 0 {
		t.report(what, "%s", figure)
	}
	for limit, of := range m.Thresholds {
		t.judge(what, figure, limit, of.OK)
	}
}

func (t *table) print(to io.Writer) {
	widths := [3]int{}
	for _, l := range t.lines {
		for i, cell := range []string{l.what, l.figure, l.limit} {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, l := range t.lines {
		fmt.Fprintf(to, "  %-*s  %-*s  %-*s  %s\n", widths[0], l.what, widths[1], l.figure, widths[2], l.limit, l.verdict)
	}
	if t.note != "" {
		fmt.Fprintf(to, "  %s\n", t.note)
	}
}

// result is the table of a completed scenario. The table is nil if the scenario failed.
type result struct {
	name string
	*table
	latency string // latency of the upstream, such as 30ms-1.7s
}

// site is an installation, with the results of the scenarios that have run on it.
type site struct {
	*harness.Site
	results []result
}

// addResult prints a table with its verdict and adds it to the results.
func (s *site) addResult(name string, t *table) {
	t.print(s.Out)
	verdict := "held"
	if t.missed {
		verdict = isMissed
	}
	fmt.Fprintf(s.Out, "VERDICT of %s: %s\n\n", name, verdict)
	s.results = append(s.results, result{name, t, s.Latency})
}

// anyMissed reports whether any limit was missed.
func (s *site) anyMissed() bool {
	return slices.ContainsFunc(s.results, func(r result) bool { return r.table != nil && r.missed })
}

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func percent(rate float64) string { return fmt.Sprintf("%.2f %%", 100*rate) }

// formatDuration formats a duration in milliseconds, or in seconds from one second on.
func formatDuration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// p95 returns the 95th percentile of the durations. If there are no durations, it returns the largest
// possible duration, so that no limit is met.
func p95(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return math.MaxInt64
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)*95+99)/100-1]
}
