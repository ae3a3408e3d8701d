package app

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/scheduler"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/settings"
	"github.com/freshet/freshet/status"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/sqlite"
)

func TestConsoleSchedule_ShowsState(t *testing.T) {
	f := newConsoleFixture(t, func(p *parts) {
		c := p.config.Sources[builtInSource]
		facet := scheduler.DefaultConfig()
		facet.Mode = scheduler.Tiers
		c.Prefetch.Facets = map[string]scheduler.Config{"character": facet}
		p.config.Sources[builtInSource] = c
	})
	ctx, now := t.Context(), time.Now()
	var all []prefetched.RegisteredEntity
	for i := range 30 {
		due := now.Add(time.Hour)
		if i < 4 {
			due = now.Add(-time.Duration(10-i) * time.Minute)
		}
		all = append(all, prefetched.RegisteredEntity{Entity: testEntity(fmt.Sprint(i)), Tier: prefetched.Tier(i % 3), Enabled: i != 29, Due: due})
	}
	if _, err := f.store.RegisterEntities(ctx, all); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		err := f.store.WriteFailure(ctx, store.Status{
			Entity: testEntity(fmt.Sprint(i)), State: store.Retrying, Reason: "x", Lane: schemas.Low, Version: 1, Until: now.Add(time.Duration(i-1) * time.Hour), Since: now, UpdatedAt: now,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := status.WriteHeartbeat(ctx, f.rdb, builtInSource, "host/1/AAAA"); err != nil {
		t.Fatal(err)
	}
	look := func() status.Schedule { return f.deps.Schedule.Schedule(ctx, builtInSource) }
	servicetest.WaitFor(t, eventTimeout, "what the prefetch may feed", func() bool { return look().FeedRate.Value > 0 }) // the rate is 0 until the lag has been sampled
	got := look()
	facet, d := got.Facets[0], got.Due
	if facet.Mode != "tiers" || facet.Tiers[prefetched.Hot] != (status.TierSchedule{Interval: time.Hour, Entities: status.Reading[int64]{Value: 10}, Exact: true}) || facet.Tiers[prefetched.Cold].Entities.Value != 9 {
		t.Errorf("facet: got %+v, want mode tiers, 10 hot entities every 1h, exactly, 9 cold ones", facet)
	}
	if len(d.Tiers) != 3 || d.Tiers[0].Count != 2 || d.Tiers[1].Count != 1 || !d.Next.Equal(now.Add(-10*time.Minute).Truncate(time.Microsecond)) || d.Error != "" {
		t.Errorf("due: got %+v, want 2, 1 and another count in 3 tiers, the next at %v, no error", d, now.Add(-10*time.Minute))
	}
	if d.Retries.Count != 2 || d.Scheduled.Count != 3 || d.Retries.Oldest.Sub(now.Add(-time.Hour)).Abs() > time.Millisecond || d.Outbox.Count != 0 {
		t.Errorf("due: got %+v, want 2 retries, the oldest at %v, 3 scheduled, none in the outbox", d, now.Add(-time.Hour))
	}
	if len(got.Schedulers.Value) != 1 || got.Schedulers.Value[0].Process != "host/1/AAAA" || got.Schedulers.Value[0].Age > eventTimeout {
		t.Errorf("schedulers: got %+v, want only host/1/AAAA, at most %v old", got.Schedulers, eventTimeout)
	}
	if got.RateCap == nil || math.Abs(got.FeedRate.Value-*got.RateCap) > 1 || got.Requested != nil {
		t.Errorf("got feed rate %+v, rate cap %v, requested %v; want a cap that differs by at most 1 from the rate, none requested",
			got.FeedRate, got.RateCap, got.Requested)
	}
	asked := prometheus.NewCounter(prometheus.CounterOpts{Name: "prefetch_requested_total", ConstLabels: prometheus.Labels{"source": builtInSource}})
	f.reg.MustRegister(asked)
	asked.Add(7)
	servicetest.WaitFor(t, eventTimeout, "the number of requests", func() bool { n := look().Requested; return n != nil && *n == 7 })
	f.stopRedis()
	servicetest.WaitFor(t, eventTimeout, "that Redis is down", func() bool {
		got := look()
		return got.FeedRate.Error == "Redis does not answer" && got.Schedulers.Error == "Redis does not answer" && got.Due.Error == "" && len(got.Facets) == 3
	})
	if got := f.deps.Schedule.Schedule(ctx, "nowhere"); got.Due.Error == "" {
		t.Errorf("unknown source: got %+v, want an error of the due entities", got)
	}
}

// buggyDue is a store whose reads of due entities, counts and settings panic.
type buggyDue struct{ *sqlite.Store }

func (buggyDue) TierBacklogs(context.Context, string, time.Time, int) ([]prefetched.TierBacklog, error) {
	panic("a bug")
}

func (buggyDue) CountEntities(context.Context, prefetched.Filter) (int64, bool, error) {
	panic("a bug")
}

func (buggyDue) Setting(context.Context, string) (store.Setting, error) { panic("a bug") }

func TestConsoleSchedule_RecoversPanic(t *testing.T) {
	f := newConsoleFixture(t, func(p *parts) { p.store = buggyDue{p.store.(*sqlite.Store)} })
	servicetest.WaitFor(t, eventTimeout, "that it is not known", func() bool {
		got := f.deps.Schedule.Schedule(t.Context(), builtInSource)
		return strings.Contains(got.Due.Error, "panic") && strings.Contains(got.FeedRate.Error, "panic") && strings.Contains(got.Facets[0].Tiers[0].Entities.Error, "panic") && got.Schedulers.Error == ""
	})
}

func TestLimiterView_ShowsStopAtOnce(t *testing.T) {
	f := newConsoleFixture(t, nil)
	state := func() limiter.State {
		v, err := f.deps.Limits.View(t.Context(), builtInSource)
		if err != nil {
			t.Fatal(err)
		}
		return v.State
	}
	if got := state(); got != limiter.StateUnused {
		t.Errorf("state: got %q, want %q", got, limiter.StateUnused)
	}
	if _, err := f.deps.Limits.Stop(t.Context(), settings.ChangeRequest{Source: builtInSource, Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != limiter.StateStopping { // the state stays stopping, because no worker runs that could report the stop to Redis
		t.Errorf("state: got %q, want %q", got, limiter.StateStopping)
	}
	if _, err := f.deps.Limits.Resume(t.Context(), settings.ChangeRequest{Source: builtInSource, Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != limiter.StateUnused {
		t.Errorf("state: got %q, want %q", got, limiter.StateUnused)
	}
}
