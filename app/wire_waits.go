package app

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/freshet/freshet/limiter"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/query"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/topics"
)

const (
	// estimateInterval is the interval at which the limiters' estimates of waiting times are read.
	// An estimate that was read more than estimateTTL ago is ignored.
	estimateInterval = 5 * time.Second
	estimateTTL      = 30 * time.Second
)

// highLag provides the consumer lag and the throughput of HIGH lanes.
type highLag interface {
	// Latest returns the last sample of a lane, if it is recent.
	Latest(source string, lane schemas.Lane) (lag topics.Lag, at time.Time, known bool)
	// Throughput returns how many records were committed per second after the time `since`. Only the
	// time in which records waited counts; `busy` is the length of this time.
	Throughput(source string, lane schemas.Lane, since time.Time) (perSecond float64, busy time.Duration)
}

// waits estimates the waiting times that the query service reports (estimatedWaitMs): the number of
// records before a request, divided by the rate at which the limiter allows calls now. A measured
// throughput that is lower counts instead, for example if the workers or the upstream are slow.
type waits struct {
	lag     highLag
	sources map[string]float64 // by source: the number of calls that a record needs on average
	read    func(ctx context.Context, source string) (limiter.WaitEstimate, error)
	log     *slog.Logger

	mu        sync.Mutex
	estimates map[string]timedEstimate
	backlogs  map[string]*backlog
}

// timedEstimate is a limiter's estimate with the time at which this process read it. flowing is the
// time since which the source has sent calls, as far as this process knows; zero: the source sends no
// calls.
type timedEstimate struct {
	limiter.WaitEstimate
	readAt, flowing time.Time
}

func newWaits(lag highLag, sources map[string]float64, read func(context.Context, string) (limiter.WaitEstimate, error), log *slog.Logger) *waits {
	w := &waits{lag: lag, sources: sources, read: read, log: log, estimates: map[string]timedEstimate{}, backlogs: map[string]*backlog{}}
	for source := range sources {
		w.backlogs[source] = &backlog{}
	}
	return w
}

// EstimateWait returns the estimated wait of the HIGH request with this number, the time at which the
// data for the estimate was measured, and whether an estimate is available. No estimate is available
// while the source sends no calls, or if no worker commits records. EstimateWait uses only values in
// memory.
func (w *waits) EstimateWait(source string, number int64) (wait time.Duration, measured time.Time, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	estimate, found := w.estimates[source]
	age := now.Sub(estimate.readAt)
	if !found || age > estimateTTL || estimate.Blocked != "" {
		return 0, time.Time{}, false
	}
	rate, sampled := w.rate(source, estimate)
	if !sampled || !rate.known {
		if estimate.Delay > age {
			return estimate.Delay - age, estimate.readAt, true
		}
		return 0, time.Time{}, false
	}
	enqueued := now
	if number > 0 { // the number of a request is its enqueue time in Unix milliseconds, by Redis' clock
		if at := time.UnixMilli(number).Add(estimate.readAt.Sub(estimate.At)); at.Before(now) {
			enqueued = at
		}
	}
	b := w.backlogs[source]
	records, served := b.before(enqueued, now)
	return rate.Wait(records*rate.calls, age, served), b.sampled, true
}

// laneRate is the rate at which records of a lane are processed. calls is the number of calls that
// the estimate counts for each record.
type laneRate struct {
	limiter.WaitEstimate
	calls float64
	known bool
}

// rate updates the source's backlog from the last sample, and returns the rate of HIGH. sampled is
// false without a recent sample. The caller holds w.mu.
func (w *waits) rate(source string, estimate timedEstimate) (rate laneRate, sampled bool) {
	lag, at, sampled := w.lag.Latest(source, schemas.High)
	if !sampled {
		return laneRate{}, false
	}
	w.backlogs[source].sample(at, lag.Committed, lag.Committed+lag.Records)
	rate = laneRate{WaitEstimate: estimate.WaitEstimate, calls: w.sources[source]}
	perSecond, busy := w.lag.Throughput(source, schemas.High, estimate.flowing)
	switch allowed := rate.Wait(perSecond*busy.Seconds(), 0, 0); {
	case perSecond > 0 && rate.calls == 1 && allowed > busy*3/4:
		// The limiter is the bottleneck. Its rate is more exact than the measured throughput, because
		// commits come in batches.
	case perSecond > 0:
		rate.WaitEstimate, rate.calls = estimate.AtMost(perSecond), 1
	case busy > 0 && rate.Wait(unworkedRecords*rate.calls, 0, 0) < busy:
		return rate, true // the rate stays unknown: the limiter allowed calls, but no worker committed a record
	}
	rate.known = rate.Paced()
	return rate, true
}

// unworkedRecords is a number of records. A lane counts as a lane without workers if the limiter has
// allowed the calls for this number of records, but no record was committed.
const unworkedRecords = 5

// published adds n HIGH records that this process has published.
func (w *waits) published(source string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	estimate, found := w.estimates[source]
	if !found {
		return
	}
	rate, sampled := w.rate(source, estimate)
	if !sampled {
		return
	}
	now := time.Now()
	b := w.backlogs[source]
	records, _ := b.before(now, now)
	b.publish(now, n, rate.Wait(records*rate.calls, 0, 0))
}

// state returns the state of a source's limiter: StateFlowing, or the state in which the source sends
// no calls, and the time at which it will send calls again. The zero time means that this time is
// unknown. known is false if the limiter was last read more than estimateTTL ago.
func (w *waits) state(source string) (state limiter.State, until time.Time, known bool) {
	w.mu.Lock()
	estimate := w.estimates[source]
	w.mu.Unlock()
	age := time.Since(estimate.readAt)
	if age > estimateTTL {
		return "", time.Time{}, false
	}
	if estimate.BlockedFor > age {
		until = estimate.readAt.Add(estimate.BlockedFor)
	}
	switch {
	case estimate.Blocked == limiter.StateStopped:
		return limiter.StateStopped, time.Time{}, true
	case estimate.Blocked == limiter.StateBreakerOpen,
		estimate.Blocked == limiter.StateBackingOff && !until.IsZero(): // until is zero if the backoff has ended since the limiter was read
		return estimate.Blocked, until, true
	}
	return limiter.StateFlowing, time.Time{}, true
}

// blockedReasons are the reasons in responses for the states in which a source sends no calls.
var blockedReasons = map[limiter.State]query.RefreshReason{
	limiter.StateStopped: query.ReasonStopped, limiter.StateBreakerOpen: query.ReasonUpstreamDown, limiter.StateBackingOff: query.ReasonBackingOff,
}

// Blocked returns the reason why a source sends no calls now, and the time at which it will send
// calls again. The zero time means that this time is unknown. The reason is empty if the source sends
// calls, or if the source's limiter was last read more than estimateTTL ago.
func (w *waits) Blocked(source string) (query.RefreshReason, time.Time) {
	state, until, _ := w.state(source)
	return blockedReasons[state], until
}

// Run reads the limiters every estimateInterval until ctx ends. If a read fails, the
// last estimate stays in use until it is older than estimateTTL.
func (w *waits) Run(ctx context.Context) error {
	estimate := func(ctx context.Context) {
		for source := range w.sources {
			readCtx, cancel := context.WithTimeout(ctx, estimateInterval)
			estimate, err := w.read(readCtx, source)
			cancel()
			if err != nil {
				w.log.Debug("limiter state read failed", "source", source, "err", err)
				continue
			}
			w.set(source, estimate, time.Now())
		}
	}
	estimate(ctx)
	poll.Every(ctx, estimateInterval, estimate)
	return nil
}

// set replaces the limiter's estimate of a source, which was read now.
func (w *waits) set(source string, estimate limiter.WaitEstimate, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	timed := timedEstimate{estimate, now, time.Time{}}
	if estimate.Blocked == "" && estimate.Delay <= 0 {
		if timed.flowing = w.estimates[source].flowing; timed.flowing.IsZero() {
			timed.flowing = now
		}
	}
	w.estimates[source] = timed
}

// callsPerRecord returns, for each source, the mean number of documents of its facets.
func callsPerRecord(sources map[string]SourceConfig) map[string]float64 {
	calls := map[string]float64{}
	for name, source := range sources {
		documents := 0
		for _, facet := range source.Facets {
			documents += max(1, len(facet.Documents))
		}
		calls[name] = max(1, float64(documents)/float64(max(1, len(source.Facets))))
	}
	return calls
}
