package main

import (
	"fmt"
	"io"
	"time"
)

// table collects figures and whether their limits are held.
type table struct {
	lines  [][4]string // what, figure, limit, verdict
	note   string      // below them, of one or more lines
	missed bool
}

// figure adds one that is only told.
func (t *table) figure(what, format string, args ...any) {
	t.lines = append(t.lines, [4]string{what, fmt.Sprintf(format, args...)})
}

// judge adds one that has a limit.
func (t *table) judge(what, figure, limit string, held bool) {
	verdict := "ok"
	if !held {
		verdict, t.missed = "MISSED", true
	}
	t.lines = append(t.lines, [4]string{what, figure, limit, verdict})
}

// limits judges a metric by the script's own thresholds.
func (t *table) limits(sum summary, metric, what, figure string) {
	m, ok := sum.Metrics[metric]
	if !ok {
		t.judge(what, "none", "some", false) // nothing was asked: nothing was shown
		return
	}
	if len(m.Thresholds) == 0 {
		t.figure(what, "%s", figure)
	}
	for limit, of := range m.Thresholds {
		t.judge(what, figure, limit, of.OK)
	}
}

func (t *table) print(to io.Writer) {
	widths := [4]int{}
	for _, line := range t.lines {
		for i, cell := range line {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, line := range t.lines {
		fmt.Fprintf(to, "  %-*s  %-*s  %-*s  %s\n", widths[0], line[0], widths[1], line[1], widths[2], line[2], line[3])
	}
	if t.note != "" {
		fmt.Fprintf(to, "  %s\n", t.note)
	}
}

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func percent(rate float64) string { return fmt.Sprintf("%.2f %%", 100*rate) }
