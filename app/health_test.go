package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas/openapitest"
)

func TestHealth_NamesDependenciesOnlyWhenVerbose(t *testing.T) {
	up := func(context.Context) error { return nil }
	down := func(context.Context) error { return errors.New("dial tcp 10.0.0.5:6379: refused") }
	late := func(context.Context) error { return fmt.Errorf("ping: %w", context.DeadlineExceeded) }
	for name, c := range map[string]struct {
		checks         map[string]healthCheck
		status         int
		plain, verbose string
	}{
		"pass": {map[string]healthCheck{"redis": {run: up}, "reads": {required: true, run: up}}, 200, `"status":"pass"`, `"redis":{"state":"connected","seconds":0`},
		"warn": {map[string]healthCheck{"redis": {run: down}, "reads": {required: true, run: up}}, 200, `"status":"warn"`, `"reason":"dial tcp`},
		"late": {map[string]healthCheck{"redis": {run: late}, "reads": {required: true, run: up}}, 200, `"status":"warn"`, `"redis":{"state":"timeout","seconds":0`},
		"fail": {map[string]healthCheck{"redis": {run: up}, "reads": {required: true, run: down}}, 503, `"status":"fail"`, `"ready":false`},
	} {
		h := newHealth(c.checks, slog.New(slog.DiscardHandler))
		get := func(target string) string {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), "GET", target, nil)
			h.handleHealth(w, r)
			openapitest.Check(t, openapitest.Exchange{Request: r, Status: w.Code, Header: w.Header(), Response: w.Body.String()})
			if w.Code != c.status {
				t.Errorf("%s, %s: got %d, want %d", name, target, w.Code, c.status)
			}
			return strings.TrimSpace(w.Body.String())
		}
		if got := get("/healthz"); !strings.Contains(got, c.plain) || strings.Contains(got, "redis") || strings.Contains(got, "version") {
			t.Errorf("%s: got %s, want %s without details", name, got, c.plain)
		}
		if got := get("/healthz?verbose"); !strings.Contains(got, c.verbose) {
			t.Errorf("%s: got %s, want %s in it", name, got, c.verbose)
		}
	}
}

// Each case has a state of a limiter that this process has read some time ago. The health page must
// show this state, without a new read.
func TestHealth_ShowsSourcesFromMemory(t *testing.T) {
	blocked := func(s limiter.State, d time.Duration) limiter.WaitEstimate {
		return limiter.WaitEstimate{Blocked: s, BlockedFor: d}
	}
	for name, c := range map[string]struct {
		estimate     limiter.WaitEstimate
		age          time.Duration
		state, whole string
	}{
		"flowing":       {limiter.WaitEstimate{}, 0, "flowing", "pass"},
		"stopped":       {blocked(limiter.StateStopped, 0), 0, "stopped", "warn"},
		"breaker open":  {blocked(limiter.StateBreakerOpen, time.Minute), 0, "breaker-open", "warn"},
		"backing off":   {blocked(limiter.StateBackingOff, time.Minute), 0, "backing-off", "warn"},
		"backoff ended": {blocked(limiter.StateBackingOff, time.Second), 2 * time.Second, "flowing", "pass"},
		"not read":      {blocked(limiter.StateStopped, 0), time.Hour, "unknown", "pass"},
	} {
		w := newWaits(nil, map[string]float64{"a-source": 1}, func(context.Context, string) (limiter.WaitEstimate, error) {
			t.Errorf("%s: got a read of the limiter, want none", name)
			return limiter.WaitEstimate{}, nil
		}, slog.New(slog.DiscardHandler))
		w.estimates["a-source"] = timedEstimate{WaitEstimate: c.estimate, readAt: time.Now().Add(-c.age)}
		h := newHealth(nil, slog.New(slog.DiscardHandler))
		h.sources = w.sourcesHealth
		got := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/healthz?verbose", nil)
		h.handleHealth(got, r)
		openapitest.Check(t, openapitest.Exchange{Request: r, Status: got.Code, Header: got.Header(), Response: got.Body.String()})
		if got.Code != 200 {
			t.Errorf("%s: got %d, want 200", name, got.Code)
		}
		for _, want := range []string{`"a-source":{"state":"` + c.state + `"`, `"status":"` + c.whole + `"`, `"version":`} {
			if !strings.Contains(got.Body.String(), want) {
				t.Errorf("%s: got %s, want %s in it", name, got.Body, want)
			}
		}
	}
}

// The token issuer is unavailable. The health page must show the result of the last fetch of the
// issuer's keys, and must not send a request to the issuer.
func TestHealth_ShowsTheIssuerFromMemory(t *testing.T) {
	var calls atomic.Int64
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer issuer.Close()
	f := newConsoleFixture(t, func(p *parts) {
		p.config.Access.JWKSURL, p.config.Access.Issuer, p.config.Access.Audience = issuer.URL, "https://issuer.example", "freshet"
	})
	h := f.deps.Overview.(*overview).health
	delete(h.checks, readsCheckName) // remove this check, because it fails in this fixture
	w := getHealth(t, h, "/healthz?verbose", "")
	if w.Code != http.StatusOK {
		t.Errorf("got %d, want 200", w.Code)
	}
	for _, want := range []string{`"status":"warn"`, `"issuer":{"state":"error",`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("got %s, want %s in it", w.Body, want)
		}
	}
	if got := calls.Load(); got != 1 {
		t.Errorf("got %d calls of the issuer, want 1: at the start", got)
	}
}
