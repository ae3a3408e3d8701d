package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/limiter"
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
		"stopped":              {true, limiter.WaitEstimate{Stopped: true, PerSecond: 20}, nil, 0, false},
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
