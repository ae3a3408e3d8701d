package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// cores tells which of the scenario's processes took how much of the machine since
// start. The users share the cores with the processes, so they are a part of the figures.
type cores struct {
	began  time.Time
	before map[*harness.Process]time.Duration
}

func (s *site) cores() cores {
	c := cores{time.Now(), map[*harness.Process]time.Duration{}}
	for _, p := range s.Processes() {
		c.before[p] = harness.CPUTime(p.Process.Pid)
	}
	return c
}

// used is for each process that still runs, in cores.
func (c cores) used(s *site, others ...string) string {
	all := others
	for _, p := range s.Processes() {
		if now := harness.CPUTime(p.Process.Pid); now > 0 {
			all = append(all, fmt.Sprintf("%s %.2f", p.Name, (now-c.before[p]).Seconds()/time.Since(c.began).Seconds()))
		}
	}
	return strings.Join(all, ", ")
}
