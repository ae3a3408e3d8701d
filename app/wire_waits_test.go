package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
)

// fixedLag is a lag of 380 records with a throughput of 20 a second.
type fixedLag struct{ known bool }

func (m fixedLag) EstimateWait(string, schemas.Lane) (time.Duration, time.Time, bool) {
	return 19 * time.Second, time.Now(), m.known
}
func (m fixedLag) Records(string, schemas.Lane) (int64, bool) { return 380, true }

// The waiting time that is reported for the HIGH lane must never be below the limiter's estimate.
func TestWaits_UseTheLimiter(t *testing.T) {
	for name, c := range map[string]struct {
		lag     bool
		opening limiter.WaitEstimate
		err     error
		want    time.Duration
		known   bool
	}{
		"flowing":              {true, limiter.WaitEstimate{PerSecond: 20}, nil, 19 * time.Second, true},
		"the day is used up":   {true, limiter.WaitEstimate{Delay: 354 * time.Second, PerSecond: 20}, nil, 373 * time.Second, true},
		"used up, no lag":      {false, limiter.WaitEstimate{Delay: 354 * time.Second, PerSecond: 20}, nil, 373 * time.Second, true},
		"a lower limit":        {true, limiter.WaitEstimate{PerSecond: 10}, nil, 38 * time.Second, true},
		"stopped":              {true, limiter.WaitEstimate{Blocked: limiter.StateStopped, PerSecond: 20}, nil, 0, false},
		"breaker open":         {true, limiter.WaitEstimate{Blocked: limiter.StateBreakerOpen, PerSecond: 20}, nil, 0, false},
		"backing off":          {true, limiter.WaitEstimate{Blocked: limiter.StateBackingOff, BlockedFor: time.Minute, PerSecond: 20}, nil, 0, false},
		"nothing is known":     {false, limiter.WaitEstimate{PerSecond: 20}, nil, 19 * time.Second, false},
		"Redis does not reply": {true, limiter.WaitEstimate{Delay: time.Hour}, errors.New("down"), 19 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				open := func(context.Context, string) (limiter.WaitEstimate, error) { return c.opening, c.err }
				w := newWaits(fixedLag{c.lag}, []string{"api"}, open, slog.New(slog.DiscardHandler))
				go func() { _ = w.Run(t.Context()) }()
				synctest.Wait()
				got, _, known := w.EstimateWait("api", schemas.High)
				if known != c.known || known && got != c.want {
					t.Errorf("got %v, known %v; want %v, known %v", got, known, c.want, c.known)
				}
			})
		})
	}
}

func TestWaits_ReportWhyNoCallsAreSent(t *testing.T) {
	for name, c := range map[string]struct {
		estimate limiter.WaitEstimate
		later    time.Duration // time between the read of the limiter and the call of Blocked
		want     query.RefreshReason
		until    time.Duration // after the read of the limiter; 0: unknown
	}{
		"flowing":               {limiter.WaitEstimate{}, 0, "", 0},
		"stopped":               {limiter.WaitEstimate{Blocked: limiter.StateStopped}, 0, query.ReasonStopped, 0},
		"backing off":           {limiter.WaitEstimate{Blocked: limiter.StateBackingOff, BlockedFor: 4 * time.Second}, time.Second, query.ReasonBackingOff, 4 * time.Second},
		"the backoff has ended": {limiter.WaitEstimate{Blocked: limiter.StateBackingOff, BlockedFor: 4 * time.Second}, 4 * time.Second, "", 0},
		"breaker open":          {limiter.WaitEstimate{Blocked: limiter.StateBreakerOpen, BlockedFor: 4 * time.Second}, 0, query.ReasonUpstreamDown, 4 * time.Second},
		"the probe is due":      {limiter.WaitEstimate{Blocked: limiter.StateBreakerOpen, BlockedFor: 4 * time.Second}, 4 * time.Second, query.ReasonUpstreamDown, 0},
		"read a long time ago":  {limiter.WaitEstimate{Blocked: limiter.StateStopped}, estimateTTL + time.Second, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWaits(fixedLag{}, []string{"api"}, nil, slog.New(slog.DiscardHandler))
				readAt := time.Now()
				w.estimates["api"] = timedEstimate{c.estimate, readAt}
				time.Sleep(c.later)
				reason, until := w.Blocked("api")
				if reason != c.want {
					t.Errorf("got reason %q, want %q", reason, c.want)
				}
				if until.IsZero() != (c.until == 0) || c.until > 0 && until.Sub(readAt) != c.until {
					t.Errorf("got until %v, want %v after %v", until, c.until, readAt)
				}
			})
		})
	}
	t.Run("unknown", func(t *testing.T) {
		if reason, _ := newWaits(fixedLag{}, nil, nil, slog.New(slog.DiscardHandler)).Blocked("api"); reason != "" {
			t.Errorf("got reason %q, want none", reason)
		}
	})
}
