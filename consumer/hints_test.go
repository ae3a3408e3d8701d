package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/consumer"
	"github.com/freshet/freshet/schemas"
)

// recordedHints is a HintStore in memory.
type recordedHints struct {
	mu     sync.Mutex
	member string
	log    bytes.Buffer
}

func (h *recordedHints) SaveHint(_ context.Context, facet, member string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.member = facet + " " + member
	return nil
}

func (h *recordedHints) DeleteHint(ctx context.Context, _ string) error {
	return h.SaveHint(ctx, "", "")
}

func (h *recordedHints) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log.Write(p)
}

func (h *recordedHints) state() (member, log string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.member, h.log.String()
}

// The worker stores a hint about the member that alone changes at every check. It deletes the hint
// as soon as a check finds no change.
func TestHints_NameTheOnlyChangingMember(t *testing.T) {
	r := newRig(t)
	p := r.newUpstream("/item?id={id}", map[string]string{"id": "{key}"})
	hints := &recordedHints{}
	deps := r.deps()
	deps.Hints, deps.Log = consumer.NewHints(hints), slog.New(slog.NewTextHandler(hints, nil))
	w, err := consumer.New(consumer.DefaultConfig(schemas.High), r.source, schemas.High, deps)
	if err != nil {
		t.Fatal(err)
	}
	r.run(w.Run)
	deadline := time.Now().Add(waitTimeout)
	for i := 0; ; i++ {
		p.respondWith(fmt.Sprintf(`{"name":"a","meta":{"requestId":%d}}`, i))
		r.checked("a", nil)
		if member, _ := hints.state(); member == "character basic.meta.requestId" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("hint: got none after %d changes, want one", i)
		}
	}
	_, log := hints.state()
	if got := strings.Count(log, "only one JSON member of the facet changes at every check"); got != 1 {
		t.Errorf("log: got the hint %d times, want once: %s", got, log)
	}
	if want := "member=basic.meta.requestId"; !strings.Contains(log, want) {
		t.Errorf("log: got %s, want %s in it", log, want)
	}
	r.checked("a", nil) // this check finds the same content as the check before it
	if member, _ := hints.state(); strings.TrimSpace(member) != "" {
		t.Errorf("hint after an unchanged check: got %q, want none", member)
	}
}
