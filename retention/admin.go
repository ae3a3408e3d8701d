package retention

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/freshet/freshet/admin"
	"github.com/freshet/freshet/problem"
	"github.com/freshet/freshet/store"
)

const (
	actionRun = "maintenance-run"

	// requestRun makes the run of a table due. Argument: name of the table.
	requestRun = `INSERT INTO maintenance (name, requested) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET due_at = 0, requested = true`
	selectRuns = `SELECT name, due_at, requested, running, started_at, ended_at, deleted FROM maintenance`
)

// Status is the state of the maintenance.
type Status struct {
	Tables []TableStatus `json:"tables"`
}

// TableStatus is the state of the maintenance of one table. Times are nil if there are none.
type TableStatus struct {
	Table string `json:"table"`
	// KeepSeconds is the retention period; 0: the rows are kept without limit.
	KeepSeconds int64 `json:"keepSeconds"`
	// Oldest is when the retention period of the oldest row began.
	Oldest *time.Time `json:"oldest"`
	// Requested is set from the request of a run to the end of the run.
	Requested bool       `json:"requested"`
	Running   bool       `json:"running"`
	StartedAt *time.Time `json:"startedAt"` // start of the last run
	EndedAt   *time.Time `json:"endedAt"`   // end of the last run that has ended
	NextAt    *time.Time `json:"nextAt"`    // the next run
	Deleted   int64      `json:"deleted"`   // rows that the last run has deleted
}

// Admin shows the state of the maintenance and requests runs. The processes that run Maintenance delete
// the rows.
type Admin struct {
	Config Config
	Store  TxStore
	Actor  func(*http.Request) string // returns the name of the client, for the audit
	Wake   func(context.Context)      // wakes the pollers on Channel
	Now    func() time.Time
	Log    *slog.Logger
}

// Handler returns the admin API of the maintenance, for the path /admin/v1/maintenance and all paths below
// it. The caller must have authenticated the client.
func (a Admin) Handler() http.Handler {
	return admin.API{
		Paths: map[string]map[string]admin.Handle{
			"/admin/v1/maintenance":     {http.MethodGet: a.show},
			"/admin/v1/maintenance/run": {http.MethodPost: a.run},
		},
		Explain:     func(error) *problem.HTTPError { return nil },
		Unavailable: "The state of the maintenance can't be read or written now. The query service's log has the reason. After an upgrade, run `freshet migrate up`.",
		CrossSite:   "A page of another site may not run the maintenance.",
		Log:         a.Log,
	}.Handler()
}

func (a Admin) show(r *http.Request) (admin.Answer, error) {
	s, err := a.Status(r.Context())
	return admin.Answer{Body: s}, err
}

func (a Admin) run(r *http.Request) (admin.Answer, error) {
	s, err := a.Request(r.Context(), a.Actor(r))
	return admin.Answer{Status: http.StatusAccepted, Body: s}, err
}

// Request makes the run of each table with a retention period due, and writes the audit entry in the same
// transaction. Then it wakes the processes that run Maintenance. It returns the state before the runs.
func (a Admin) Request(ctx context.Context, actor string) (Status, error) {
	names := []string{}
	var statements []store.Statement
	for _, t := range Tables {
		if t.Keep(a.Config) > 0 {
			names = append(names, t.Name)
			statements = append(statements, store.Statement{Text: requestRun, Args: []any{t.Name}})
		}
	}
	after, err := json.Marshal(map[string][]string{"tables": names})
	if err != nil {
		panic(err) // encoding texts can't fail
	}
	entry := store.AuditEntry{At: a.Now(), Actor: actor, Action: actionRun, Before: json.RawMessage("{}"), After: after}
	if err := a.Store.InTx(ctx, func(tx store.Tx) error {
		return tx.Commit(ctx, append(statements, store.Statement{Text: store.InsertAudit, Args: entry.AuditArgs()})...)
	}); err != nil {
		return Status{}, err
	}
	defer a.Wake(ctx)
	return a.Status(ctx)
}

// Status returns the state of the maintenance of each table.
func (a Admin) Status(ctx context.Context) (Status, error) {
	s := Status{Tables: make([]TableStatus, len(Tables))}
	err := a.Store.InTx(ctx, func(tx store.Tx) error {
		runs := map[string]TableStatus{}
		err := tx.Query(ctx, func(scan func(...any) error) error {
			var t TableStatus
			var due, started, ended int64
			err := scan(&t.Table, &due, &t.Requested, &t.Running, &started, &ended, &t.Deleted)
			t.NextAt, t.StartedAt, t.EndedAt = timeOf(due), timeOf(started), timeOf(ended)
			runs[t.Table] = t
			return err
		}, selectRuns)
		if err != nil {
			return err
		}
		for i, t := range Tables {
			of := runs[t.Name]
			of.Table, of.KeepSeconds = t.Name, int64(t.Keep(a.Config)/time.Second)
			if err := tx.Query(ctx, func(scan func(...any) error) error {
				var oldest int64
				err := scan(&oldest)
				of.Oldest = timeOf(oldest * t.micros())
				return err
			}, t.OldestStatement()); err != nil {
				return err
			}
			s.Tables[i] = of
		}
		return nil
	})
	return s, err
}

// timeOf returns the time of a column; nil: the column has no time.
func timeOf(micros int64) *time.Time {
	if micros == 0 {
		return nil
	}
	at := time.UnixMicro(micros).UTC()
	return &at
}
