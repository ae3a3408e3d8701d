package settings

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
)

func TestHandler_LimiterMatchesOpenAPI(t *testing.T) {
	r := newRig(t)
	rdb, _ := servicetest.MiniRedis(t)
	source := r.sources["nexon"]
	config := &source.Quota
	config.Policies = append(slices.Clone(config.Policies), limiter.Policy{Name: "seats", Limit: 3, Window: limiter.InFlight, Scope: "{endpoint}"})
	r.sources["nexon"] = source
	quota, err := limiter.NewQuota(*config)
	if err != nil {
		t.Fatal(err)
	}
	r.readLimiter = func(ctx context.Context, source string) (any, error) {
		_, revision, err := r.Quota(ctx, source)
		if err != nil {
			return nil, err
		}
		return limiter.ReadView(ctx, rdb, source, quota, revision)
	}
	getLimiter := func() string { t.Helper(); return r.do(http.MethodGet, "/admin/v1/limiter/nexon", "").text }
	if text := getLimiter(); !strings.Contains(text, `"state":"unused"`) {
		t.Error(text)
	}

	l, err := limiter.New("nexon", *config, limiter.Deps{
		Redis: rdb, Settings: r, Process: "here", Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	until := func(parts ...string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			text := getLimiter()
			missing := 0
			for _, part := range parts {
				if !strings.Contains(text, part) {
					missing++
				}
			}
			if missing == 0 {
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-deadline:
				t.Fatalf("limiter state without %q after 20s: %s", parts, text)
			}
		}
	}
	until(`"state":"quiet-period","at":`, `"until":`, `"process":"here"`)
	if p, err := l.Acquire(ctx, schemas.Low, limiter.Call{Endpoint: "basic"}); err != nil || !p.Spend() {
		t.Fatal(err)
	}
	until(`"state":"flowing"`, `"used":1`, `"resetsAt":`, `"policy":"seats"`, `"scope":"\"basic\""`, `"inFlight":1`)
	r.act("stop", "")
	until(`"state":"stopped"`, `"revision":1`)
	go func() { _, _ = l.Acquire(ctx, schemas.High, limiter.Call{}) }()
	until(`"state":"stopped"`, `"waiting":1`, `"reason":"stopped"`)
	r.act("resume", "")
	l.BackOff(time.Hour, time.Now())
	until(`"state":"backing-off"`, `"revision":2`, `"rampRatio":0.5`)
}
