package harness

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"
)

// CPUTime returns the processor time that a process has used, or 0 if there is no /proc.
func CPUTime(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// In /proc/PID/stat, utime and stime are the 12th and 13th field after the command's name.
	// Their unit is a hundredth of a second.
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

var peakMemory = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// PeakMemory returns the peak of a running process's resident memory, in bytes.
func PeakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	m := peakMemory.FindSubmatch(status)
	if m == nil {
		return 0, fmt.Errorf("read the memory of process %d: no VmHWM, the process has ended", pid)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10, err
}
