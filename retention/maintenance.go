package retention

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

const (
	// Channel is the Redis channel whose messages wake the maintenance in all processes.
	Channel = "maintenance"

	runInterval   = time.Hour       // time from the end of a run of a table to the next run of this table
	checkInterval = 5 * time.Minute // maximum time until a requested run starts if its wake-up message was lost
	batchRows     = 1000            // maximum number of rows that one transaction deletes
	batchInterval = 100 * time.Millisecond
	batchTimeout  = 30 * time.Second
)

// TxStore runs transactions in the database.
type TxStore interface {
	InTx(ctx context.Context, do func(store.Tx) error) error
}

// Statements about the table maintenance, for both databases. Their first argument is the name of a
// table.
const (
	insertRun = `INSERT INTO maintenance (name) VALUES ($1) ON CONFLICT (name) DO NOTHING`
	// beginBatch locks the row of a table, and begins a run of this table unless a run has begun. It
	// writes no row if no run is due. Second argument: now.
	beginBatch = `UPDATE maintenance SET started_at = CASE WHEN running THEN started_at ELSE $2 END, deleted = CASE WHEN running THEN deleted ELSE 0 END,
	running = true WHERE name = $1 AND due_at <= $2`
	// addDeleted adds to the number of rows that the run has deleted. Second argument: number of rows
	// of a batch.
	addDeleted = `UPDATE maintenance SET deleted = deleted + $2 WHERE name = $1`
	// endRun ends the run of a table, and returns how many rows the run has deleted. Further arguments:
	// now, time of the next run.
	endRun = `UPDATE maintenance SET running = false, requested = false, ended_at = $2, due_at = $3 WHERE name = $1 RETURNING deleted`
	// selectDue returns the time of the next run of a table.
	selectDue = `SELECT due_at FROM maintenance WHERE name = $1`
)

// PollFails is the log condition that the poller of the maintenance requires. It never occurs, because
// Maintenance reports failures itself, with one condition for each table.
var PollFails = deletionFails("", "")

// MaintenanceDeps are the dependencies of Maintenance.
type MaintenanceDeps struct {
	Store   TxStore
	Poller  *poll.Poller // wakes up at messages of Channel
	Now     func() time.Time
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Maintenance deletes the old rows of Tables, the oldest rows first. Any number of processes may run
// it. One transaction deletes one batch of rows of a table, and locks the row of this table in the
// table maintenance. So only one process at a time deletes rows of a table, and any process can
// continue the run of a process that has crashed.
type Maintenance struct {
	config     Config
	deps       MaintenanceDeps
	rows       int // maximum number of rows that one transaction deletes
	deleted    *prometheus.CounterVec
	conditions observe.Conditions
}

// NewMaintenance returns a Maintenance with these retention periods.
func NewMaintenance(config Config, deps MaintenanceDeps) *Maintenance {
	m := &Maintenance{config: config, deps: deps, rows: batchRows, deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "maintenance_deleted_total", Help: "Rows that this process deleted after the retention period of their table.",
	}, []string{"table"})}
	for _, t := range Tables {
		m.deleted.WithLabelValues(t.Name)
	}
	deps.Metrics.MustRegister(m.deleted)
	return m
}

// Run deletes old rows until ctx ends: of each table once an hour, and when an operator requests it.
func (m *Maintenance) Run(ctx context.Context) error {
	return m.deps.Poller.Run(ctx, checkInterval, func(ctx context.Context, _ time.Time) (time.Time, error) { return m.RunDue(ctx), nil })
}

// RunDue deletes the old rows of all tables whose run is due. It returns the time of the next run. If
// the run of a table fails, RunDue logs the failure and continues with the other tables.
func (m *Maintenance) RunDue(ctx context.Context) (next time.Time) {
	for _, t := range Tables {
		if keep := t.Keep(m.config); keep > 0 {
			next = poll.Earlier(next, m.runTable(ctx, t, keep))
		}
	}
	return next
}

// runTable executes the run of a table if it is due. It returns the time of the next run of this table.
func (m *Maintenance) runTable(ctx context.Context, t Table, keep time.Duration) (next time.Time) {
	for {
		now := m.deps.Now()
		b, err := m.runBatch(ctx, t, now, now.Add(-keep))
		if ctx.Err() != nil {
			return time.Time{}
		}
		m.conditions.Record(m.deps.Log, deletionFails("rows", t.Name), err)
		if err != nil {
			return now.Add(retryInterval)
		}
		m.deleted.WithLabelValues(t.Name).Add(float64(b.deleted))
		if b.ended && b.total > 0 {
			m.deps.Log.Info("expired rows deleted", "rows", t.Name, "deleted", b.total)
		}
		if !b.next.IsZero() || !poll.Pause(ctx, batchInterval) {
			return b.next
		}
	}
}

// batch says how many rows one transaction has deleted, and whether the run of the table has ended.
type batch struct {
	deleted int
	ended   bool      // true if this was the last batch of the run
	total   int64     // number of rows that the whole run has deleted; set if ended
	next    time.Time // time of the next run of the table; zero means that the run has not ended
}

// runBatch deletes one batch of rows in one transaction. It deletes nothing if no run of the table is due.
func (m *Maintenance) runBatch(ctx context.Context, t Table, now, before time.Time) (b batch, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = m.deps.Store.InTx(ctx, func(tx store.Tx) error {
		b = batch{}
		statement := func(text string, args ...any) store.Statement {
			return store.Statement{Text: text, Args: append([]any{t.Name}, args...)}
		}
		written, err := tx.Exec(ctx, statement(insertRun), statement(beginBatch, now.UnixMicro()))
		if err != nil {
			return err
		}
		if written[1] == 0 {
			return tx.Query(ctx, func(scan func(...any) error) error {
				var due int64
				err := scan(&due)
				b.next = time.UnixMicro(due)
				return err
			}, selectDue, t.Name)
		}
		if b.deleted, err = t.Delete(ctx, tx, before, m.rows); err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, statement(addDeleted, b.deleted)); err != nil || b.deleted == m.rows {
			return err
		}
		b.ended, b.next = true, now.Add(runInterval)
		return tx.Query(ctx, func(scan func(...any) error) error { return scan(&b.total) },
			endRun, t.Name, now.UnixMicro(), b.next.UnixMicro())
	})
	if err != nil {
		err = fmt.Errorf("delete old rows of %s: %w", t.Name, err)
	}
	return b, err
}
