package consumer_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
)

// logBuffer is an in-memory log. Its methods may be called concurrently.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// calls returns the log lines of upstream calls.
func (b *logBuffer) calls(t *testing.T) (all []map[string]any) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatal(err)
		}
		if one["msg"] == "upstream called" {
			all = append(all, one)
		}
	}
	return all
}

func TestWorker_LogsEachCallAtDebug(t *testing.T) {
	r := newRig(t)
	log := &logBuffer{}
	deps := r.deps()
	deps.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w, err := consumer.New(consumer.DefaultConfig(schemas.High), r.source, schemas.High, deps)
	if err != nil {
		t.Fatal(err)
	}
	r.run(w.Run)
	r.enqueue("a", schemas.High, schemas.CacheMiss)
	r.untilStored("a")
	r.enqueue("a", schemas.High, schemas.Trigger)
	r.until("a second call", func() bool { return len(log.calls(t)) == 2 })
	lines := log.calls(t)
	for name, want := range map[string]any{
		"source": "nexon", "facet": "character", "key": "a", "url": r.config.BaseURL + "/character/basic?ocid=a",
		"status": 200.0, "class": "ok", "lane": "HIGH", "changed": true, "attempt": 1.0,
	} {
		if got := lines[0][name]; got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"ms", "bytes"} {
		if n, _ := lines[0][name].(float64); n <= 0 {
			t.Errorf("%s: got %v, want more than 0", name, lines[0][name])
		}
	}
	for _, name := range []string{"waited_ms", "correlation_id"} {
		if lines[0][name] == nil {
			t.Errorf("%s: got nothing in %v, want a value", name, lines[0])
		}
	}
	if got := lines[1]["changed"]; got != false {
		t.Errorf("changed, of the same content again: got %v, want false", got)
	}
}
