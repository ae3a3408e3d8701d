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
	"github.com/freshet/freshet/topics"
)

// fixedLag reports a lag of 380 records, which workers process at a fixed rate.
type fixedLag struct {
	perSecond float64
	busy      time.Duration
	unknown   bool
}

func (l fixedLag) Latest(string, schemas.Lane) (topics.Lag, time.Time, bool) {
	return topics.Lag{Records: 380, Committed: 7}, time.Now(), !l.unknown
}

func (l fixedLag) Throughput(string, schemas.Lane, time.Time) (float64, time.Duration) {
	return l.perSecond, l.busy
}

func TestWaits_UseTheLimiter(t *testing.T) {
	delayed := limiter.WaitEstimate{Delay: 354 * time.Second}
	for name, c := range map[string]struct {
		lag      fixedLag
		calls    float64
		estimate limiter.WaitEstimate
		err      error
		want     time.Duration
		known    bool
	}{
		"flowing":                    {fixedLag{}, 1, limiter.WaitEstimate{}.AtMost(20), nil, 19 * time.Second, true},
		"two calls a record":         {fixedLag{}, 2, limiter.WaitEstimate{}.AtMost(20), nil, 38 * time.Second, true},
		"the day is used up":         {fixedLag{}, 1, delayed.AtMost(20), nil, 373 * time.Second, true},
		"used up, no lag":            {fixedLag{unknown: true}, 1, delayed.AtMost(20), nil, 354 * time.Second, true},
		"flowing, no lag":            {fixedLag{unknown: true}, 1, limiter.WaitEstimate{}.AtMost(20), nil, 0, false},
		"slow workers":               {fixedLag{perSecond: 2, busy: 10 * time.Second}, 1, limiter.WaitEstimate{}.AtMost(20), nil, 190 * time.Second, true},
		"commits in batches":         {fixedLag{perSecond: 18, busy: 5 * time.Second}, 1, limiter.WaitEstimate{}.AtMost(20), nil, 19 * time.Second, true},
		"a lower limit than before":  {fixedLag{perSecond: 20, busy: 10 * time.Second}, 1, limiter.WaitEstimate{}.AtMost(10), nil, 38 * time.Second, true},
		"no worker":                  {fixedLag{busy: 10 * time.Second}, 1, limiter.WaitEstimate{}.AtMost(20), nil, 0, false},
		"a call a minute, no commit": {fixedLag{busy: 10 * time.Second}, 1, limiter.WaitEstimate{}.AtMost(1. / 60), nil, 380 * time.Minute, true},
		"only calls in flight":       {fixedLag{}, 1, limiter.WaitEstimate{}, nil, 0, false},
		"calls in flight, measured":  {fixedLag{perSecond: 20, busy: 10 * time.Second}, 1, limiter.WaitEstimate{}, nil, 19 * time.Second, true},
		"stopped":                    {fixedLag{}, 1, limiter.WaitEstimate{Blocked: limiter.StateStopped}.AtMost(20), nil, 0, false},
		"breaker open":               {fixedLag{}, 1, limiter.WaitEstimate{Blocked: limiter.StateBreakerOpen}.AtMost(20), nil, 0, false},
		"backing off":                {fixedLag{}, 1, limiter.WaitEstimate{Blocked: limiter.StateBackingOff, BlockedFor: time.Minute}.AtMost(20), nil, 0, false},
		"Redis does not reply":       {fixedLag{}, 1, limiter.WaitEstimate{Delay: time.Hour}, errors.New("down"), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				open := func(context.Context, string) (limiter.WaitEstimate, error) { return c.estimate, c.err }
				w := newWaits(c.lag, map[string]float64{"api": c.calls}, open, slog.New(slog.DiscardHandler))
				go func() { _ = w.Run(t.Context()) }()
				synctest.Wait()
				got, _, known := w.EstimateWait("api", 0)
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
		until    time.Duration // expected time from the read of the limiter until calls are sent again; 0: unknown
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
				w := newWaits(fixedLag{}, map[string]float64{"api": 1}, nil, slog.New(slog.DiscardHandler))
				readAt := time.Now()
				w.estimates["api"] = timedEstimate{WaitEstimate: c.estimate, readAt: readAt}
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
