package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// responseMemoryDivisor is the part of the memory limit that responses may hold by default:
// 1/responsePart.
const responseMemoryDivisor = 4

// maxResponseMemory returns how many bytes the responses that are being written may
// hold: the setting, or a quarter of the memory limit of the process; 0 if there is
// neither.
func (c QueryConfig) maxResponseMemory() int64 {
	if c.MaxResponseMemory > 0 {
		return int64(c.MaxResponseMemory)
	}
	return memoryLimit("/") / responseMemoryDivisor
}

// memoryLimit returns how many bytes of memory this process may use, by GOMEMLIMIT or
// by its cgroup, whichever is less; 0 if neither limits it. root is where the file
// system begins.
func memoryLimit(root string) int64 {
	limit := debug.SetMemoryLimit(-1) // changes nothing
	for _, group := range cgroupLimitFiles(root) {
		text, err := os.ReadFile(group)
		if err != nil {
			continue
		}
		// "max" and what version 1 writes for no limit are beyond any machine.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	if limit >= math.MaxInt64/2 {
		return 0
	}
	return limit
}

// cgroupLimitFiles returns the files that may hold a limit of this process: of version 2 those
// of its group and of the groups above, of version 1 that of the memory controller.
func cgroupLimitFiles(root string) []string {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	const mount = "sys/fs/cgroup"
	files := []string{
		filepath.Join(root, mount, "memory.max"), // in a container its group is the root
		filepath.Join(root, mount, "memory/memory.limit_in_bytes"),
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		group, unified := strings.CutPrefix(line, "0::/")
		if !unified {
			continue
		}
		for ; group != "" && group != "."; group = filepath.Dir(group) {
			files = append(files, filepath.Join(root, mount, group, "memory.max"))
		}
	}
	return files
}
