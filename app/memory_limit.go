package app

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
)

// responseMemoryDivisor divides the process's memory limit; the result is the default of
// query.maxResponseMemory.
const responseMemoryDivisor = 4

// maxResponseMemory returns the bound for the memory of responses that are being written, in bytes:
// the setting, or a quarter of the process's memory limit. It is 0 without the setting and without
// a memory limit.
func (c QueryConfig) maxResponseMemory() int64 {
	if c.MaxResponseMemory > 0 {
		return int64(c.MaxResponseMemory)
	}
	return memoryLimit("/") / responseMemoryDivisor
}

// memoryLimit returns the memory limit of this process in bytes: the smaller of GOMEMLIMIT and
// the limit of its cgroup, or 0 without a limit. root is the root of the file system.
func memoryLimit(root string) int64 {
	limit := debug.SetMemoryLimit(-1) // with a negative argument, SetMemoryLimit changes nothing and returns the current limit
	for _, group := range cgroupLimitFiles(root) {
		text, err := os.ReadFile(group)
		if err != nil {
			continue
		}
		// Without a limit, the file of cgroup version 2 holds "max", which is not a number, and the
		// file of version 1 holds a number near 1<<63.
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	if limit >= math.MaxInt64/2 {
		return 0
	}
	return limit
}

// cgroupLimitFiles returns the files that may hold a memory limit of this process. For cgroup
// version 2: the files of its group and of all parent groups. For version 1: the file of the
// memory controller.
func cgroupLimitFiles(root string) []string {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	const mount = "sys/fs/cgroup"
	files := []string{
		filepath.Join(root, mount, "memory.max"), // in a container, the cgroup of the process is mounted as the root
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
