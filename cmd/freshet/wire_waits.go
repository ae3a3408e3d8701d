package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/schemas"
)

const (
	// openingReadInterval is how often the limiters are read for waiting times, and openingTTL how
	// long an answer counts.
	openingReadInterval = 5 * time.Second
	openingTTL          = 30 * time.Second
)

// lagWaits is the waiting time by the lag and the throughput of the last minute.
type lagWaits interface {
	EstimateWait(source string, lane schemas.Lane) (wait time.Duration, measured time.Time, known bool)
	Records(source string, lane schemas.Lane) (n int64, known bool)
}

// waits returns waiting times of HIGH for the query service. The throughput of the last minute
// knows nothing of a day that is used up since, so the limiter's opening is the least.
type waits struct {
	lag     lagWaits
	sources []string
	open    func(ctx context.Context, source string) (limiter.WaitEstimate, error)
	log     *slog.Logger

	mu       sync.Mutex
	openings map[string]readOpening
}

// readOpening is an opening, and when it was read by this process' clock.
type readOpening struct {
	limiter.WaitEstimate
	read time.Time
}

func newWaits(lag lagWaits, sources []string, open func(context.Context, string) (limiter.WaitEstimate, error), log *slog.Logger) *waits {
	return &waits{lag: lag, sources: sources, open: open, log: log, openings: map[string]readOpening{}}
}

// EstimateWait returns how long a request that is published now will wait, when that was measured and
// whether it is known. It is not known while calls are stopped. It asks nobody.
func (w *waits) EstimateWait(source string, lane schemas.Lane) (time.Duration, time.Time, bool) {
	wait, measured, known := w.lag.EstimateWait(source, lane)
	w.mu.Lock()
	opening, read := w.openings[source]
	w.mu.Unlock()
	age := time.Since(opening.read)
	if !read || age > openingTTL || lane != schemas.High {
		return wait, measured, known
	}
	if opening.Stopped {
		return 0, time.Time{}, false
	}
	records, counted := w.lag.Records(source, lane)
	if !counted {
		records = 0
	}
	if least := opening.Wait(records) - age; opening.Delay > age && least > wait {
		return least, opening.read, true
	} else if known && least > wait {
		return least, measured, true
	}
	return wait, measured, known
}

// Run reads the limiters every openingInterval until ctx ends. A limiter that can't be read
// leaves the last opening to age.
func (w *waits) Run(ctx context.Context) error {
	tick := time.NewTicker(openingReadInterval)
	defer tick.Stop()
	for {
		for _, source := range w.sources {
			brief, cancel := context.WithTimeout(ctx, openingReadInterval)
			opening, err := w.open(brief, source)
			cancel()
			if err != nil {
				w.log.Debug("limiter not read for waiting times", "source", source, "err", err)
				continue
			}
			w.mu.Lock()
			w.openings[source] = readOpening{opening, time.Now()}
			w.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// opening returns when a source's limiter lets HIGH call again.
func (p parts) opening(ctx context.Context, source string) (limiter.WaitEstimate, error) {
	view, quota, set, err := p.limiterNow(ctx, source)
	if err != nil {
		return limiter.WaitEstimate{}, err
	}
	opening := quota.EstimateWait(view)
	opening.Stopped = opening.Stopped || set != nil && set.Stopped
	return opening, nil
}
