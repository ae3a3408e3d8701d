// Package retention ends what was kept for longer than its facet allows: a walk along
// the keys, at an even pace, that any number of processes may share.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/source"
)

// Store deletes what is kept too long.
type Store interface {
	// DeleteExpired looks at the next most snapshots of a facet, and deletes content that
	// was fetched, and absences that were checked, before their times. done: it came to the
	// end, and the next call begins anew.
	DeleteExpired(ctx context.Context, source, facet string, content, absence time.Time, most int) (deleted int, done bool, err error)
	// DeleteOldStatuses does the same with the statuses of entities of which nothing is
	// stored, by when they failed last.
	DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, most int) (deleted int, done bool, err error)
}

// MinPeriodWithoutContent is for how long an absence, or a status of an entity of which nothing is
// stored, is kept where the facet has no keepFor: as long as the topic keeps a dead letter.
// Any visitor who makes keys up makes such rows. After it the entity is unknown again, and a
// reader that asks for it causes a call.
const MinPeriodWithoutContent = 7 * 24 * time.Hour

const (
	// stepRows are looked at in one transaction, and pace lies between two: ten million
	// snapshots are walked along in less than three hours.
	stepRows     = 1000
	stepInterval = time.Second
	// walkInterval lies between two walks, and trouble behind one that failed.
	walkInterval  = time.Hour
	retryInterval = 30 * time.Second
)

// Periods are for how long a facet's rows are kept.
type Periods struct {
	Content  time.Duration // 0: without end
	Absences time.Duration
	Statuses time.Duration // of entities of which nothing is stored
}

// PeriodsOf returns the times of a facet.
func PeriodsOf(f source.Facet) Periods {
	if f.KeepFor > 0 {
		return Periods{f.KeepFor, f.KeepFor, max(f.KeepFor, f.FailedFor)}
	}
	return Periods{0, max(MinPeriodWithoutContent, f.NotFoundFor), max(MinPeriodWithoutContent, f.FailedFor)}
}

// Walk ends what was kept too long of one facet.
type Walk struct {
	log     *slog.Logger
	rows    string
	step    func(ctx context.Context, now time.Time) (deleted int, done bool, err error)
	deleted prometheus.Counter
}

// New returns the walks of a facet: along its snapshots, and along its statuses.
func New(source, facet string, keep Periods, st Store, log *slog.Logger, reg prometheus.Registerer) []*Walk {
	labels := prometheus.Labels{"source": source, "facet": facet}
	log = log.With("source", source, "facet", facet)
	snapshots := &Walk{
		log: log, rows: "snapshots and absences",
		step: func(ctx context.Context, now time.Time) (int, bool, error) {
			var content time.Time // before which nothing was fetched
			if keep.Content > 0 {
				content = now.Add(-keep.Content)
			}
			return st.DeleteExpired(ctx, source, facet, content, now.Add(-keep.Absences), stepRows)
		},
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retention_deleted_total", Help: "Snapshots and absences that were deleted since they were kept for long enough.", ConstLabels: labels,
		}),
	}
	statuses := &Walk{
		log: log, rows: "statuses of entities without a snapshot",
		step: func(ctx context.Context, now time.Time) (int, bool, error) {
			return st.DeleteOldStatuses(ctx, source, facet, now.Add(-keep.Statuses), stepRows)
		},
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retention_statuses_deleted_total", Help: "Statuses of entities without a snapshot that were deleted since they were kept for long enough.", ConstLabels: labels,
		}),
	}
	reg.MustRegister(snapshots.deleted, statuses.deleted)
	return []*Walk{snapshots, statuses}
}

// Run walks until ctx ends.
func (w *Walk) Run(ctx context.Context) error {
	failed, sum := false, 0
	for wait := stepInterval; poll.Pause(ctx, wait); {
		n, done, err := w.step(ctx, time.Now())
		switch {
		case err != nil:
			if !failed && ctx.Err() == nil {
				w.log.Warn("what was kept too long stays until this succeeds", "err", err)
			}
			failed, wait = true, retryInterval
			continue
		case failed:
			failed = false
			w.log.Info("what was kept too long is deleted again")
		}
		w.deleted.Add(float64(n))
		sum += n
		if wait = stepInterval; done {
			if wait = walkInterval; sum > 0 {
				w.log.Info("what was kept too long was deleted", "rows", sum, "of", w.rows)
			}
			sum = 0
		}
	}
	return nil
}
