package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// cores measures the processor time that the scenario's processes use after the call of
// site.cores. The load generator runs on the same machine and competes with these processes for
// CPU, so its processor time is reported too.
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

// used formats the mean number of CPU cores that each running process has used. The texts in
// "others" are placed first; they contain the figures of other programs, such as k6.
func (c cores) used(s *site, others ...string) string {
	all := others
	for _, p := range s.Processes() {
		if now := harness.CPUTime(p.Process.Pid); now > 0 {
			all = append(all, fmt.Sprintf("%s %.2f", p.Name, (now-c.before[p]).Seconds()/time.Since(c.began).Seconds()))
		}
	}
	return strings.Join(all, ", ")
}
