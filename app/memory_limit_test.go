package app

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

func TestMemoryLimit_IsTheSmallestThatHolds(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		env   int64 // value of GOMEMLIMIT in bytes; 0: GOMEMLIMIT is not set
		want  int64
	}{
		"nothing":                 {nil, 0, 0},
		"no limit, version 2":     {map[string]string{"sys/fs/cgroup/memory.max": "max\n"}, 0, 0},
		"no limit, version 1":     {map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0, 0},
		"a container":             {map[string]string{"sys/fs/cgroup/memory.max": "1073741824\n"}, 0, 1 << 30},
		"a container, version 1":  {map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n"}, 0, 512 << 20},
		"GOMEMLIMIT":              {nil, 900 << 20, 900 << 20},
		"GOMEMLIMIT in container": {map[string]string{"sys/fs/cgroup/memory.max": "1073741824\n"}, 900 << 20, 900 << 20},
		"a group above": {map[string]string{
			"proc/self/cgroup":                               "0::/system.slice/freshet.service\n",
			"sys/fs/cgroup/system.slice/memory.max":          "268435456\n",
			"sys/fs/cgroup/system.slice/freshet.service/x":   "",
			"sys/fs/cgroup/system.slice/freshet.service/max": "1",
		}, 0, 256 << 20},
		"what can't be read": {map[string]string{"sys/fs/cgroup/memory.max": "lots\n", "proc/self/cgroup": "1:memory:/a\n"}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				at := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(at), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.env > 0 {
				defer debug.SetMemoryLimit(debug.SetMemoryLimit(c.env))
			}
			if got := memoryLimit(root); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestResponseMemory_IsTheSettingOrAQuarter(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20))
	if got := (QueryConfig{}).maxResponseMemory(); got != 16<<20 {
		t.Errorf("without a setting: got %d, want %d", got, 16<<20)
	}
	if got := (QueryConfig{MaxResponseMemory: 1 << 20}).maxResponseMemory(); got != 1<<20 {
		t.Errorf("with a setting: got %d, want %d", got, 1<<20)
	}
}
