// Package retention ends what was kept for longer than its facet allows: a walk along
// the keys, at an even pace, that any number of processes may share.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/due"
)

// Store deletes what is kept too long.
type Store interface {
	// DeleteExpired looks at the next most snapshots of a facet, and deletes those that
	// were fetched before. done: it came to the end, and the next call begins anew.
	DeleteExpired(ctx context.Context, source, facet string, before time.Time, most int) (deleted int, done bool, err error)
}

const (
	// lookMost are looked at in one transaction, and pace lies between two: ten million
	// snapshots are walked along in less than three hours.
	lookMost = 1000
	pace     = time.Second
	// rest lies between two walks, and trouble behind one that failed.
	rest    = time.Hour
	trouble = 30 * time.Second
)

// Walk ends what was kept too long of one facet.
type Walk struct {
	source, facet string
	keepFor       time.Duration
	store         Store
	log           *slog.Logger
	deleted       prometheus.Counter
}

// New returns the walk of a facet, whose snapshots are kept for a time.
func New(source, facet string, keepFor time.Duration, st Store, log *slog.Logger, reg prometheus.Registerer) *Walk {
	w := &Walk{
		source: source, facet: facet, keepFor: keepFor, store: st, log: log.With("source", source, "facet", facet),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retention_deleted_total", Help: "Snapshots that were deleted since their facet's keepFor was over.",
			ConstLabels: prometheus.Labels{"source": source, "facet": facet},
		}),
	}
	reg.MustRegister(w.deleted)
	return w
}

// Run walks until ctx ends.
func (w *Walk) Run(ctx context.Context) error {
	failed, sum := false, 0
	for wait := pace; due.Pause(ctx, wait); {
		n, done, err := w.store.DeleteExpired(ctx, w.source, w.facet, time.Now().Add(-w.keepFor), lookMost)
		switch {
		case err != nil:
			if !failed && ctx.Err() == nil {
				w.log.Warn("what was kept too long stays until this succeeds", "err", err)
			}
			failed, wait = true, trouble
			continue
		case failed:
			failed = false
			w.log.Info("what was kept too long is deleted again")
		}
		w.deleted.Add(float64(n))
		sum += n
		if wait = pace; done {
			if wait = rest; sum > 0 {
				w.log.Info("what was kept too long was deleted", "snapshots", sum, "kept_for", w.keepFor)
			}
			sum = 0
		}
	}
	return nil
}
