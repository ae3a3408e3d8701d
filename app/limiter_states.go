package app

import (
	"context"
	"log/slog"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/status"
)

// limiterState is the state of a source's limiter, the quota in force and the stored override. The
// override is nil if it can't be read.
type limiterState struct {
	view     limiter.View
	quota    limiter.Quota
	override *limiter.Override
}

// limiterStates shares the reads of limiters in a query service: the estimates of waiting times read
// each limiter every estimateInterval, and the history uses the last read.
type limiterStates map[string]*status.Cached[limiterState]

func newLimiterStates(p parts) limiterStates {
	all, log := limiterStates{}, p.log
	p.log = slog.New(slog.DiscardHandler) // an outage of the database must not be logged every 5 s; the breaker of reads logs it
	for _, source := range p.config.sourceNames() {
		all[source] = &status.Cached[limiterState]{
			Read: func(ctx context.Context) (s limiterState, err error) {
				s.view, s.quota, s.override, err = p.limiterNow(ctx, source)
				return s, err
			},
			Timeout: estimateInterval, Clock: time.Now, Log: log,
		}
	}
	return all
}

// estimate returns the limiter's estimate of when it grants the next permits of HIGH. It reads the
// limiter, unless another caller reads it at the same time.
func (s limiterStates) estimate(ctx context.Context, source string) (limiter.WaitEstimate, error) {
	now, _, err := s[source].Get(ctx, 0)
	if err != nil {
		return limiter.WaitEstimate{}, err
	}
	estimate := now.quota.EstimateWait(now.view)
	if now.override != nil && now.override.Stopped {
		estimate.Blocked, estimate.BlockedFor = limiter.StateStopped, 0
	}
	return estimate, nil
}

// recent returns the state of a source's limiter, at most estimateInterval old.
func (s limiterStates) recent(ctx context.Context, source string) (limiter.View, error) {
	last, _, err := s[source].Get(ctx, estimateInterval)
	return status.WithStop(last.view, last.override), err
}
