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

	// requestRun makes a run of the maintenance of a table due. Argument: name of the table.
	requestRun = `INSERT INTO maintenance (name, requested) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET due_at = 0, requested = true`
	selectRuns = `SELECT name, due_at, requested, running, started_at, ended_at, deleted FROM maintenance`
)

// Status is the state of the maintenance of all tables.
type Status struct {
	Tables []TableStatus `json:"tables"`
}

// TableStatus is the state of the maintenance of one table. A time that does not exist is nil.
type TableStatus struct {
	Table string `json:"table"`
	// KeepSeconds is the retention period; 0 means that the rows are kept without limit.
	KeepSeconds int64 `json:"keepSeconds"`
	// Oldest is when the retention period of the oldest row began.
	Oldest *time.Time `json:"oldest"`
	// Requested is true from an operator's request until the end of the requested run.
	Requested bool       `json:"requested"`
	Running   bool       `json:"running"`
	StartedAt *time.Time `json:"startedAt"` // start of the run that began last
	EndedAt   *time.Time `json:"endedAt"`   // end of the run that ended last
	NextAt    *time.Time `json:"nextAt"`    // start of the next run
	Deleted   int64      `json:"deleted"`   // number of rows that the last run has deleted
}

// Admin is the admin API of the maintenance. It shows the state and makes runs due. Schedulers execute
// the runs (Maintenance).
type Admin struct {
	Config Config
	Store  TxStore
	Actor  func(*http.Request) string // returns the name of the client that sent a request, for the audit
	Wake   func(context.Context)      // wakes the processes that run Maintenance
	Now    func() time.Time
	Log    *slog.Logger
}

// Handler returns the handler of /admin/v1/maintenance and all paths below it. The caller must have
// authenticated the client.
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

// Request makes a run due for each table with a retention period. It writes the audit entry in the same
// transaction, and wakes the processes that run Maintenance. It returns the state before the runs.
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
		panic(err) // no error is possible: the value has only texts
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

// timeOf converts a time of the database, in microseconds. 0 becomes nil.
func timeOf(micros int64) *time.Time {
	if micros == 0 {
		return nil
	}
	at := time.UnixMicro(micros).UTC()
	return &at
}
