package query

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

// logReadsOf sets the log level of the query service of a test. The returned function returns the log
// lines of reads.
func logReadsOf(r *rig, level slog.Level) (lines func() []map[string]any) {
	var text bytes.Buffer
	r.server.readLog.log = slog.New(slog.NewJSONHandler(&text, &slog.HandlerOptions{Level: level}))
	return func() (all []map[string]any) {
		for line := range strings.Lines(text.String()) {
			var one map[string]any
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				r.Fatal(err)
			}
			if one["msg"] == "read answered" {
				all = append(all, one)
			}
		}
		return all
	}
}

func TestRead_LogsOneDebugLine(t *testing.T) {
	r := newRig(t)
	r.putSnapshot("a", time.Minute)
	lines := logReadsOf(r, slog.LevelDebug)
	r.get("a", "X-Correlation-Id", "corr-1")
	r.get("a")
	r.get("missing")
	all := lines()
	if len(all) != 3 {
		t.Fatalf("lines: got %v, want 3", all)
	}
	for i, want := range []map[string]any{
		{"entity": "nexon/character/a", "freshness": string(store.Fresh), "status": 200.0, "cached": false, "correlation_id": "corr-1"},
		{"entity": "nexon/character/a", "freshness": string(store.Fresh), "status": 200.0, "cached": true},
		{"entity": "nexon/character/missing", "freshness": string(store.Updating), "status": 202.0, "cached": false},
	} {
		for name, value := range want {
			if got := all[i][name]; got != value {
				t.Errorf("read %d: %s: got %v, want %v", i+1, name, got, value)
			}
		}
		if _, ok := all[i]["ms"].(float64); !ok {
			t.Errorf("read %d: ms: got %v, want a number", i+1, all[i]["ms"])
		}
	}
}

func TestRead_LogsNothingAtInfo(t *testing.T) {
	r := newRig(t)
	lines := logReadsOf(r, slog.LevelInfo)
	r.get("a")
	if got := lines(); len(got) != 0 {
		t.Errorf("lines: got %v, want none", got)
	}
}

func TestRead_DebugLinesAreSampled(t *testing.T) {
	r := newRig(t)
	lines := logReadsOf(r, slog.LevelDebug)
	const reads = 300
	for range reads {
		r.get("a")
	}
	written, skipped := 0, 0.0
	for _, line := range lines() {
		written++
		n, _ := line["skipped"].(float64)
		skipped += n
	}
	if written >= reads {
		t.Errorf("lines of %d reads: got %d, want fewer", reads, written)
	}
	if got := float64(written) + skipped; got > reads {
		t.Errorf("written and skipped lines: got %v, want at most %d", got, reads)
	}
}
