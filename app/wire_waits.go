package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
)

const (
	// estimateInterval is the interval at which the limiters' estimates of waiting times are read.
	// An estimate that was read more than estimateTTL ago is ignored.
	estimateInterval = 5 * time.Second
	estimateTTL      = 30 * time.Second
)

// lagWaits estimates waiting times from the consumer lag and the throughput of the last minute.
type lagWaits interface {
	EstimateWait(source string, lane schemas.Lane) (wait time.Duration, measured time.Time, known bool)
	Records(source string, lane schemas.Lane) (n int64, known bool)
}

// waits estimates the waiting times that the query service reports (estimatedWaitMs), from the lag
// and the throughput of the last minute. That throughput ignores, for example, a daily quota that
// has just been used up. So for HIGH the limiter's own estimate is a lower bound.
type waits struct {
	lag     lagWaits
	sources []string
	read    func(ctx context.Context, source string) (limiter.WaitEstimate, error)
	log     *slog.Logger

	mu        sync.Mutex
	estimates map[string]timedEstimate
}

// timedEstimate is a limiter's estimate with the time at which this process read it.
type timedEstimate struct {
	limiter.WaitEstimate
	readAt time.Time
}

func newWaits(lag lagWaits, sources []string, read func(context.Context, string) (limiter.WaitEstimate, error), log *slog.Logger) *waits {
	return &waits{lag: lag, sources: sources, read: read, log: log, estimates: map[string]timedEstimate{}}
}

// EstimateWait returns the estimated wait of a request that is published now, the time of the
// measurement, and whether an estimate is available. No estimate is available while the source sends
// no calls. It uses only values in memory.
func (w *waits) EstimateWait(source string, lane schemas.Lane) (time.Duration, time.Time, bool) {
	wait, measured, known := w.lag.EstimateWait(source, lane)
	w.mu.Lock()
	estimate, found := w.estimates[source]
	w.mu.Unlock()
	age := time.Since(estimate.readAt)
	if !found || age > estimateTTL || lane != schemas.High {
		return wait, measured, known
	}
	if estimate.Blocked != "" {
		return 0, time.Time{}, false
	}
	records, counted := w.lag.Records(source, lane)
	if !counted {
		records = 0
	}
	if lowerBound := estimate.Wait(records) - age; estimate.Delay > age && lowerBound > wait {
		return lowerBound, estimate.readAt, true
	} else if known && lowerBound > wait {
		return lowerBound, measured, true
	}
	return wait, measured, known
}

// Blocked returns why a source sends no calls now, and until when; zero: unknown. The reason is empty
// if the source sends calls, or if its limiter was last read more than estimateTTL ago.
func (w *waits) Blocked(source string) (query.RefreshReason, time.Time) {
	w.mu.Lock()
	estimate := w.estimates[source]
	w.mu.Unlock()
	age := time.Since(estimate.readAt)
	if age > estimateTTL {
		return "", time.Time{}
	}
	var until time.Time
	if estimate.BlockedFor > age {
		until = estimate.readAt.Add(estimate.BlockedFor)
	}
	switch {
	case estimate.Blocked == limiter.StateStopped:
		return query.ReasonStopped, time.Time{}
	case estimate.Blocked == limiter.StateBreakerOpen:
		return query.ReasonUpstreamDown, until
	case estimate.Blocked == limiter.StateBackingOff && !until.IsZero(): // without until the backoff has ended since the read
		return query.ReasonBackingOff, until
	}
	return "", time.Time{}
}

// Run reads the limiters every estimateInterval until ctx ends. If a read fails, the
// last estimate stays in use until it is older than estimateTTL.
func (w *waits) Run(ctx context.Context) error {
	tick := time.NewTicker(estimateInterval)
	defer tick.Stop()
	for {
		for _, source := range w.sources {
			readCtx, cancel := context.WithTimeout(ctx, estimateInterval)
			estimate, err := w.read(readCtx, source)
			cancel()
			if err != nil {
				w.log.Debug("limiter state read failed", "source", source, "err", err)
				continue
			}
			w.mu.Lock()
			w.estimates[source] = timedEstimate{estimate, time.Now()}
			w.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// waitEstimate returns the limiter's estimate of when it grants the next permits of HIGH.
func (p parts) waitEstimate(ctx context.Context, source string) (limiter.WaitEstimate, error) {
	view, quota, set, err := p.limiterNow(ctx, source)
	if err != nil {
		return limiter.WaitEstimate{}, err
	}
	estimate := quota.EstimateWait(view)
	if set != nil && set.Stopped {
		estimate.Blocked, estimate.BlockedFor = limiter.StateStopped, 0
	}
	return estimate, nil
}
