package status

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
)

// callsOf returns the keys of calls.
func callsOf(all []SharedCall) (keys []string) {
	for _, c := range all {
		keys = append(keys, c.Key)
	}
	return keys
}

func TestCalls_KeepTheNewestOfAllProcesses(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	start := time.Unix(1_800_000_000, 0).UTC()
	for n := range 600 { // two processes write one call each second in turn
		w := CallWriter{Redis: rdb, Source: "nexon", Process: fmt.Sprint("worker-", n%2), Log: slog.New(slog.DiscardHandler)}
		w.RecordCall(Call{At: start.Add(time.Duration(n) * time.Second), Key: fmt.Sprint(n), Outcome: map[bool]string{true: "5xx", false: "2xx"}[n%4 == 0]})
		w.write(t.Context())
	}
	got, err := ReadCalls(t.Context(), rdb, []string{"github", "nexon"})
	if err != nil || len(got.Last) != maxCalls || len(got.Failed) != maxFailedCalls {
		t.Fatalf("got %d calls and %d failed ones, %v, want %d and %d", len(got.Last), len(got.Failed), err, maxCalls, maxFailedCalls)
	}
	if got.Last[0].Key != "599" || got.Last[499].Key != "100" || got.Last[0].Process != "worker-1" || got.Failed[0].Key != "596" {
		t.Errorf("got %q to %q of %s, and the failed call %q first; want 599 to 100 of worker-1, and 596", got.Last[0].Key, got.Last[499].Key, got.Last[0].Process, got.Failed[0].Key)
	}
}

func TestCalls_AreSampledAboveFiftyASecond(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	w := CallWriter{Redis: rdb, Source: "nexon", Process: "worker-1", Log: slog.New(slog.DiscardHandler)}
	at := time.Unix(1_800_000_000, 0).UTC()
	for n := range 300 {
		w.RecordCall(Call{At: at.Add(time.Duration(n) * time.Millisecond), Key: fmt.Sprint(n), Outcome: map[bool]string{true: "timeout", false: "2xx"}[n >= 250]})
	}
	w.write(t.Context())
	w.RecordCall(Call{At: at.Add(time.Second), Key: "next", Outcome: "2xx"})
	w.write(t.Context())
	got, err := ReadCalls(t.Context(), rdb, []string{"nexon"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Last) != maxCallsPerSecond+maxFailedPerSecond+1 || len(got.Failed) != maxFailedPerSecond {
		t.Errorf("got %d calls and %d failed ones, want %d and %d", len(got.Last), len(got.Failed), maxCallsPerSecond+maxFailedPerSecond+1, maxFailedPerSecond)
	}
	skipped := 0
	for _, c := range got.Last {
		skipped += c.Skipped
	}
	if total := skipped + len(got.Last); total != 301 {
		t.Errorf("listed and skipped calls: got %d, want all 301 (%v)", total, callsOf(got.Last))
	}
}

func TestCalls_WriteNothingWithoutCalls(t *testing.T) {
	rdb, m := servicetest.MiniRedis(t)
	w := CallWriter{Redis: rdb, Source: "nexon", Log: slog.New(slog.DiscardHandler)}
	w.write(t.Context())
	if keys := m.Keys(); len(keys) != 0 {
		t.Errorf("keys in Redis: got %v, want none", keys)
	}
	m.Close()
	w.RecordCall(Call{Key: "a", Outcome: "2xx"})
	w.write(context.WithoutCancel(t.Context())) // must return although Redis does not answer
	if _, err := ReadCalls(t.Context(), rdb, []string{"nexon"}); err == nil {
		t.Error("ReadCalls returned no error without Redis")
	}
}
