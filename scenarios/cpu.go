package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// cores tells which of the scenario's processes took how much of the machine since
// start: users who share two cores with what they judge are a part of the figures.
type cores struct {
	began  time.Time
	before map[*process]time.Duration
}

func (s *site) cores() cores {
	c := cores{time.Now(), map[*process]time.Duration{}}
	for _, p := range s.processes {
		c.before[p] = cpuTime(p.Process.Pid)
	}
	return c
}

// used is for each process that still runs, in cores.
func (c cores) used(s *site, others ...string) string {
	all := others
	for _, p := range s.processes {
		if now := cpuTime(p.Process.Pid); now > 0 {
			all = append(all, fmt.Sprintf("%s %.2f", p.name, (now-c.before[p]).Seconds()/time.Since(c.began).Seconds()))
		}
	}
	return strings.Join(all, ", ")
}

// cpuTime is what a process has used, 0 where the kernel does not tell.
func cpuTime(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// Behind the command's name: utime and stime are the 12th and 13th field, in
	// hundredths of a second.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var user, system int64
	if len(fields) < 13 {
		return 0
	}
	if _, err := fmt.Sscan(string(fields[11])+" "+string(fields[12]), &user, &system); err != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
