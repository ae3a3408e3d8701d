package status

import (
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

func TestProcesses_AreListedUntilTheyStop(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	now := time.Now()
	m.SetTime(now)
	write := func(instance string, p Process) {
		t.Helper()
		if err := WriteReport(t.Context(), rdb, instance, p, nil); err != nil {
			t.Fatal(err)
		}
	}
	worker := Process{Name: "host/2", Role: "worker", Version: "v2", Commit: "0123456789abcdef", Started: now.UTC(), Partitions: map[string][]int32{"topic": {3, 7}}, InFlight: 5}
	write("host/2/x", worker)
	write("host/1/y", Process{Name: "host/1", Role: "query", Version: "v1"})
	write("host/3/z", Process{Name: "host/3", Role: "worker", Version: "v2", Commit: "0123456789abcdef"})
	names := func() (all []string) {
		t.Helper()
		found, err := ReadProcesses(t.Context(), rdb)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range found.All {
			all = append(all, p.Name)
		}
		return all
	}
	if got, want := names(), []string{"host/1", "host/2", "host/3"}; !slices.Equal(got, want) {
		t.Errorf("processes: got %v, want %v", got, want)
	}
	found, err := ReadProcesses(t.Context(), rdb)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := found.Versions(), []string{"v1", "v2 (01234567)"}; !slices.Equal(got, want) {
		t.Errorf("versions: got %v, want %v", got, want)
	}
	if got := found.All[1]; !slices.Equal(got.Partitions["topic"], []int32{3, 7}) || got.InFlight != 5 || !got.Started.Equal(worker.Started) || got.At.Sub(now).Abs() > time.Second {
		t.Errorf("report of the worker: got %+v, want %+v", got, worker)
	}
	if err := DeleteProcess(t.Context(), rdb, "host/3/z"); err != nil {
		t.Fatal(err)
	}
	if got, want := names(), []string{"host/1", "host/2"}; !slices.Equal(got, want) {
		t.Errorf("after a stop: got %v, want %v", got, want)
	}
	m.SetTime(now.Add(processCountsTTL + time.Second))
	write("host/1/y", Process{Name: "host/1", Role: "query"})
	if got, want := names(), []string{"host/1"}; !slices.Equal(got, want) {
		t.Errorf("after a crash: got %v, want %v", got, want)
	}
	if n, err := rdb.HLen(t.Context(), processesKey).Result(); err != nil || n != 1 {
		t.Errorf("reports in Redis: got %d, %v, want 1", n, err)
	}
}
