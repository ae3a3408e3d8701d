package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealth_NamesDependenciesOnlyWhenVerbose(t *testing.T) {
	up := func(context.Context) error { return nil }
	down := func(context.Context) error { return errors.New("dial tcp 10.0.0.5:6379: refused") }
	for name, c := range map[string]struct {
		checks         map[string]healthCheck
		status         int
		plain, verbose string
	}{
		"ok":       {map[string]healthCheck{"redis": {run: up}, "reads": {required: true, run: up}}, 200, `{"status":"ok"}`, `"redis":{"ok":true}`},
		"degraded": {map[string]healthCheck{"redis": {run: down}, "reads": {required: true, run: up}}, 200, `{"status":"degraded"}`, `"reason":"dial tcp`},
		"away":     {map[string]healthCheck{"redis": {run: up}, "reads": {required: true, run: down}}, 503, `{"status":"degraded"}`, `"ready":false`},
	} {
		h := newHealth(c.checks, slog.New(slog.DiscardHandler))
		get := func(target string) string {
			w := httptest.NewRecorder()
			h.handleHealth(w, httptest.NewRequestWithContext(t.Context(), "GET", target, nil))
			if w.Code != c.status {
				t.Errorf("%s, %s: got %d, want %d", name, target, w.Code, c.status)
			}
			return strings.TrimSpace(w.Body.String())
		}
		if got := get("/healthz"); got != c.plain {
			t.Errorf("%s: got %s, want %s", name, got, c.plain)
		}
		if got := get("/healthz?verbose"); !strings.Contains(got, c.verbose) {
			t.Errorf("%s: got %s, want %s in it", name, got, c.verbose)
		}
	}
}
