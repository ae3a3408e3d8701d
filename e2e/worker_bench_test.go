package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/e2e/harness"
)

// usage contains the processor time that all threads of a process have used, and the peak of its
// resident memory in MB.
type usage struct {
	cpu  time.Duration
	peak float64
}

// used returns the usage of a process, or skips the test if the kernel does not provide it.
func used(t testing.TB, pid int) usage {
	t.Helper()
	peak, err := harness.PeakMemory(pid)
	if err != nil {
		t.Skip(err)
	}
	return usage{harness.CPUTime(pid), float64(peak) / (1 << 20)}
}

// BenchmarkWorker_AtFullRate runs one worker at 450 calls per second with documents of real size.
// It reports the worker's processor time and memory.
func BenchmarkWorker_AtFullRate(b *testing.B) {
	const entities = 6000
	f := newFleet(b, "--latency", "30ms-1.7s")
	worker := f.worker()
	api := f.query()
	before, round := used(b, worker.Process.Pid), 0
	var took time.Duration
	for b.Loop() {
		round++
		start := time.Now()
		f.read(api, harness.Keys(fmt.Sprintf("r%d-", round), entities), 100)
		f.untilStored(2*time.Minute, entities*round)
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
