// Package retention deletes rows after their retention period. Walk deletes snapshots, not-found results and
// statuses, and Maintenance the old rows of Tables, such as the audit.
//
// Each facet has two walks, one along its snapshots and one along its statuses. A walk examines the rows
// in the order of their keys, in steps, and any number of processes may share it: each step
// continues where the last step of any process stopped.
//
//	after             | the next step follows in
//	------------------|-------------------------
//	a step            | stepInterval (1 s)
//	the last step     | walkInterval (1 h)
//	a failed step     | retryInterval (30 s)
//
// Example: ten million snapshots are 10,000 steps of 1,000 rows. One process walks along them in
// 2.8 hours. With walkInterval, a row is deleted at most about four hours after its period has
// ended.
//
// Maintenance needs no walk, because an index has the rows of each table in the order of their times. Once
// an hour it deletes the rows of each table that are older than its period, 1,000 per transaction:
//
//	row of the table maintenance | meaning
//	-----------------------------|----------------------------------------------------------------
//	due_at > now                 | the next run
//	due_at <= now                | a run is due; any process runs the next batch
//	running                      | a batch was run, and more may follow
//	requested                    | an operator has requested the run that is due; its end clears it
//
// Example: the audit is kept for 400 days. A process that was stopped for a month finds 30,000 older
// entries and deletes them in 31 transactions, within a few seconds. If it crashes after 10 of them,
// another process finds the rest at its next check, at most 5 minutes later.
package retention

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/source"
)

// Store deletes expired rows.
type Store interface {
	// DeleteExpired examines the next `limit` snapshots of a facet. It deletes content that was
	// fetched before the time `content`, and not-found results that were checked before the time
	// `notFound`. `done` is set when the facet's last snapshot has been examined; the next call starts
	// again at the first key.
	DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (deleted int, done bool, err error)
	// DeleteOldStatuses examines the next `limit` statuses of a facet, in the order of their keys. It
	// deletes statuses of entities without a snapshot if their last failure was before the given time.
	// `done` has the same meaning as in DeleteExpired.
	DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error)
}

// MinPeriodWithoutContent is the minimum retention period of not-found results, and of statuses of entities
// without a snapshot. It applies to facets without keepFor. It equals the retention time of
// dead-letter topics. These not-found results and statuses must expire, because readers create them by
// requesting invented keys. After the period the entity is unknown, and the next read causes an
// upstream call.
const MinPeriodWithoutContent = 7 * 24 * time.Hour

const (
	stepRows      = 1000 // number of rows that are examined per transaction
	stepInterval  = time.Second
	walkInterval  = time.Hour // pause between the end of a walk and the start of the next walk
	retryInterval = 30 * time.Second
)

// Periods are the retention periods of a facet's rows.
type Periods struct {
	Content  time.Duration // from the fetch of content to its deletion; 0 means that content is never deleted
	NotFound time.Duration // time from the last check of a not-found result to the deletion of this result
	Statuses time.Duration // from the last failure to the deletion of a status whose entity has no snapshot
}

// PeriodsOf returns the retention periods of a facet.
func PeriodsOf(f source.Facet) Periods {
	if f.KeepFor > 0 {
		return Periods{f.KeepFor, f.KeepFor, max(f.KeepFor, f.FailedFor)}
	}
	return Periods{0, max(MinPeriodWithoutContent, f.NotFoundFor), max(MinPeriodWithoutContent, f.FailedFor)}
}

// Walk deletes the expired rows of one facet: either its snapshots or its statuses.
type Walk struct {
	log     *slog.Logger
	rows    string // name of the kind of rows, for the log
	step    func(ctx context.Context, now time.Time) (deleted int, done bool, err error)
	deleted prometheus.Counter
}

// New returns the two walks of a facet: the first along its snapshots, the second along its
// statuses.
func New(source, facet string, periods Periods, st Store, log *slog.Logger, reg prometheus.Registerer) []*Walk {
	labels := prometheus.Labels{"source": source, "facet": facet}
	log = log.With("source", source, "facet", facet)
	snapshots := &Walk{
		log: log, rows: "snapshots and not-found results",
		step: func(ctx context.Context, now time.Time) (int, bool, error) {
			var content time.Time // time before which content is deleted; zero means that content never expires
			if periods.Content > 0 {
				content = now.Add(-periods.Content)
			}
			return st.DeleteExpired(ctx, source, facet, content, now.Add(-periods.NotFound), stepRows)
		},
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retention_deleted_total", Help: "Snapshots and not-found results deleted after their retention period.", ConstLabels: labels,
		}),
	}
	statuses := &Walk{
		log: log, rows: "statuses of entities without a snapshot",
		step: func(ctx context.Context, now time.Time) (int, bool, error) {
			return st.DeleteOldStatuses(ctx, source, facet, now.Add(-periods.Statuses), stepRows)
		},
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retention_statuses_deleted_total", Help: "Statuses of entities without a snapshot deleted after their retention period.", ConstLabels: labels,
		}),
	}
	reg.MustRegister(snapshots.deleted, statuses.deleted)
	return []*Walk{snapshots, statuses}
}

// deletionFails returns the log condition that rows can't be deleted. The attribute attr with this
// value says which rows.
func deletionFails(attr, value string) observe.Condition {
	return observe.Condition{
		Event: "retention_failed", Failing: "deletion of expired rows failed; will retry", Recovered: "deletion of expired rows resumed", Attr: attr, Value: value,
	}
}

// Run repeats the walk until ctx ends. If several steps in a row fail, it logs only the first
// failure, and then the recovery. It logs the end of each walk that deleted rows.
func (w *Walk) Run(ctx context.Context) error {
	failing := deletionFails("rows", w.rows)
	var conditions observe.Conditions
	total := 0
	for delay := stepInterval; poll.Pause(ctx, delay); {
		n, done, err := w.step(ctx, time.Now())
		if ctx.Err() == nil {
			conditions.Record(w.log, failing, err)
		}
		if err != nil {
			delay = retryInterval
			continue
		}
		w.deleted.Add(float64(n))
		total += n
		if delay = stepInterval; done {
			if delay = walkInterval; total > 0 {
				w.log.Info("expired rows deleted", "rows", w.rows, "deleted", total)
			}
			total = 0
		}
	}
	return nil
}
