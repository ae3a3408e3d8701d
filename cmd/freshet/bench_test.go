package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// usage is what a process has used, as the kernel tells it.
type usage struct {
	cpu  time.Duration // of all threads
	peak float64       // resident memory, MB
}

// used reads a process's usage from /proc.
func used(b testing.TB, pid int) usage {
	b.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		b.Skipf("no /proc on this machine: %v", err)
	}
	// Behind the command's name: state is the first field, utime and stime the
	// 12th and 13th, in hundredths of a second.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		b.Fatal(err)
	}
	u := usage{cpu: time.Duration(ticks) * 10 * time.Millisecond}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			var kb float64
			if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err != nil {
				b.Fatal(err)
			}
			u.peak = kb / 1024
		}
	}
	return u
}

// BenchmarkWorkerAtFullRate runs one worker on real services at 450 calls a
// second with bodies of true size, and tells what it takes.
func BenchmarkWorkerAtFullRate(b *testing.B) {
	const entities = 6000
	f := newFleet(b, false, "--latency", "30ms-1.7s")
	worker := f.worker()
	api := f.query()
	before, round := used(b, worker.Process.Pid), 0
	var took time.Duration
	for b.Loop() {
		round++
		start := time.Now()
		f.ask(api, characters(fmt.Sprintf("r%d-", round), entities), 100)
		f.until(2*time.Minute, "a snapshot of each", func() bool { return f.one(storedPayloads) == int64(entities*round) })
		took += time.Since(start)
	}
	after := used(b, worker.Process.Pid)
	calls := float64(entities * round)
	s := f.stats()
	b.ReportMetric(*s.Sustained, "calls/s")
	b.ReportMetric(float64(s.MaxInSlidingSecond), "most-in-a-second")
	b.ReportMetric((after.cpu-before.cpu).Seconds()/calls*1000, "cpu-ms/call")
	b.ReportMetric((after.cpu-before.cpu).Seconds()/took.Seconds(), "cores")
	b.ReportMetric(after.peak, "MB-peak")
	b.ReportMetric(0, "ns/op")
}
