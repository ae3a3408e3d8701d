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
	// openingReadInterval is the interval at which the limiters are read, and openingTTL the time
	// after which a result is ignored.
	openingReadInterval = 5 * time.Second
	openingTTL          = 30 * time.Second
)

// lagWaits estimates waiting times from the consumer lag and the throughput of the last minute.
type lagWaits interface {
	EstimateWait(source string, lane schemas.Lane) (wait time.Duration, measured time.Time, known bool)
	Records(source string, lane schemas.Lane) (n int64, known bool)
}

// waits estimates the waiting times that the query service reports (estimatedWaitMs). The lag
// gives the estimate. For HIGH the limiter's state gives a lower bound, because the throughput of
// the last minute ignores, for example, a daily quota that has just been used up.
type waits struct {
	lag     lagWaits
	sources []string
	open    func(ctx context.Context, source string) (limiter.WaitEstimate, error)
	log     *slog.Logger

	mu       sync.Mutex
	openings map[string]readOpening
}

// readOpening is a limiter's estimate with the time of reading, by this process's clock.
type readOpening struct {
	limiter.WaitEstimate
	read time.Time
}

func newWaits(lag lagWaits, sources []string, open func(context.Context, string) (limiter.WaitEstimate, error), log *slog.Logger) *waits {
	return &waits{lag: lag, sources: sources, open: open, log: log, openings: map[string]readOpening{}}
}

// EstimateWait returns the estimated wait of a request that is published now, the time of the
// measurement, and whether an estimate is available. There is none while calls are stopped. It
// sends no requests.
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

// Run reads the limiters every openingReadInterval until ctx ends. If a read fails, the last
// estimate stays in use until openingTTL.
func (w *waits) Run(ctx context.Context) error {
	tick := time.NewTicker(openingReadInterval)
	defer tick.Stop()
	for {
		for _, source := range w.sources {
			brief, cancel := context.WithTimeout(ctx, openingReadInterval)
			opening, err := w.open(brief, source)
			cancel()
			if err != nil {
				w.log.Debug("limiter state read failed", "source", source, "err", err)
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

// opening returns the limiter's estimate of when it grants the next permits of HIGH.
func (p parts) opening(ctx context.Context, source string) (limiter.WaitEstimate, error) {
	view, quota, set, err := p.limiterNow(ctx, source)
	if err != nil {
		return limiter.WaitEstimate{}, err
	}
	opening := quota.EstimateWait(view)
	opening.Stopped = opening.Stopped || set != nil && set.Stopped
	return opening, nil
}
