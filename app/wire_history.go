package app

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/status"
)

// shareCounts writes the counts of calls and reads and the report of this process to Redis until
// ctx ends. Then it deletes the report.
func shareCounts(ctx context.Context, p parts) error {
	sources, started := p.config.sourceNames(), time.Now()
	// The name has a random part, because a restarted process can have the same host name and pid.
	self := workerName() + "/" + rand.Text()[:8]
	for _, name := range sources {
		// ReadCounts is called because it deletes the counts of stopped processes. Otherwise only
		// consoles call it, and all consoles may be off. An error is ignored: the next process that
		// starts tries again.
		_, _ = status.ReadCounts(ctx, p.rdb, name)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redisTimeout)
		defer cancel()
		_ = status.DeleteProcess(ctx, p.rdb, self) // if Redis does not answer, the report expires
	}()
	return status.CountsWriter{
		Sources: sources, Metrics: p.reg, Log: p.log,
		Write: func(ctx context.Context, all map[string]status.ProcessCounts) error {
			return status.WriteReport(ctx, p.rdb, self, reportOf(p, started), all)
		},
	}.Run(ctx)
}

// sourceNames returns the names of the configured sources, sorted.
func (c Config) sourceNames() []string { return slices.Sorted(maps.Keys(c.Sources)) }

// newHistory returns the recorder of the history that the console shows.
func newHistory(p parts, limiters limiterStates) *status.HistoryRecorder {
	backlog := func(source string, lane schemas.Lane) (b status.LaneBacklog) {
		wait, _ := p.lag.EstimateWait(source, lane)
		b.Records, b.Known = p.lag.Records(source, lane)
		b.Delay = max(wait, p.lag.StalledFor(source, lane))
		return b
	}
	return status.NewHistoryRecorder(status.HistoryDeps{
		Sources: p.config.sourceNames(), Log: p.log,
		Counts: func(ctx context.Context, source string) (map[string]status.ProcessCounts, error) {
			return status.ReadCounts(ctx, p.rdb, source)
		},
		Limiter: limiters.recent,
		Lanes: func(source string) (high, low status.LaneBacklog) {
			return backlog(source, schemas.High), backlog(source, schemas.Low)
		},
	})
}
