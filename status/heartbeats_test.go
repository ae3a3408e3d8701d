package status

import (
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

func TestHeartbeats_ShareTheRate(t *testing.T) {
	rdb, server := servicetest.MiniRedis(t)
	now := time.Now()
	shareIs := func(process string, after time.Duration, want float64) {
		t.Helper()
		server.SetTime(now.Add(after)) // heartbeats use the time of Redis
		if got, err := WriteHeartbeat(t.Context(), rdb, "nexon", process); err != nil || got != want {
			t.Errorf("share of %s after %v: got %v, %v, want %v", process, after, got, err, want)
		}
	}
	shareIs("a", 0, 1)
	shareIs("b", time.Second, 0.5)
	shareIs("a", 2*time.Second, 0.5)
	all, err := ReadHeartbeats(t.Context(), rdb, "nexon")
	if want := []Heartbeat{{"a", 0}, {"b", time.Second}}; err != nil || len(all) != 2 || all[0].Process != "a" || all[1].Process != "b" || all[1].Age-all[0].Age != time.Second {
		t.Errorf("schedulers: got %v, %v, want %v", all, err, want)
	}
	shareIs("a", heartbeatTTL+2*time.Second, 1) // scheduler b does not count, because its last heartbeat is older than heartbeatTTL
	if _, err := WriteHeartbeat(t.Context(), rdb, "other", "c"); err != nil {
		t.Fatal(err)
	}
	shareIs("a", heartbeatTTL+3*time.Second, 1) // scheduler c does not count, because it belongs to another source
}
