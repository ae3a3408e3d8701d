package retention

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/sqlite"
)

// maintenanceRig is one process that runs the maintenance on a database in memory.
type maintenanceRig struct {
	*testing.T
	db  *sqlite.Store
	m   *Maintenance
	now time.Time
	log bytes.Buffer
	err map[string]error // a transaction fails with this error if one of its statements contains the text (the key of the map)
}

func newMaintenanceRig(t *testing.T, config Config) *maintenanceRig {
	t.Helper()
	db, err := sqlite.Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &maintenanceRig{T: t, db: db, now: time.Unix(1_800_000_000, 0).UTC(), err: map[string]error{}}
	r.m = NewMaintenance(config, MaintenanceDeps{
		Store: r, Now: func() time.Time { return r.now }, Log: slog.New(slog.NewTextHandler(&r.log, nil)), Metrics: prometheus.NewRegistry(),
	})
	return r
}

// InTx implements TxStore with the errors that a test sets.
func (r *maintenanceRig) InTx(ctx context.Context, do func(store.Tx) error) error {
	return r.db.InTx(ctx, func(tx store.Tx) error { return do(failingTx{tx, r.err}) })
}

type failingTx struct {
	store.Tx
	err map[string]error
}

func (t failingTx) Exec(ctx context.Context, statements ...store.Statement) ([]int64, error) {
	for _, s := range statements {
		for text, err := range t.err {
			if strings.Contains(s.Text, text) && err != nil {
				return nil, err
			}
		}
	}
	return t.Tx.Exec(ctx, statements...)
}

// audit inserts n entries into the audit. Each has the given age.
func (r *maintenanceRig) audit(n int, age time.Duration) {
	r.Helper()
	for range n {
		if err := r.db.WriteAudit(r.Context(), store.AuditEntry{At: r.now.Add(-age), Actor: "a", Action: "set", Before: []byte("{}"), After: []byte("{}")}); err != nil {
			r.Fatal(err)
		}
	}
}

func (r *maintenanceRig) entries() int {
	r.Helper()
	all, err := r.db.Audit(r.Context(), 10_000)
	if err != nil {
		r.Fatal(err)
	}
	return len(all)
}

const tenDays = 240 * time.Hour

func TestMaintenance_DeletesInBatches(t *testing.T) {
	r := newMaintenanceRig(t, Config{Audit: tenDays})
	r.m.rows = 2
	r.audit(5, tenDays+time.Second)
	r.audit(1, tenDays)
	if next := r.m.RunDue(t.Context()); !next.Equal(r.now.Add(runInterval)) {
		t.Errorf("next run: got %v, want %v", next, r.now.Add(runInterval))
	}
	if got := r.entries(); got != 1 {
		t.Errorf("entries kept: got %d, want 1", got)
	}
	if got := testutil.ToFloat64(r.m.deleted.WithLabelValues("audit")); got != 5 {
		t.Errorf("maintenance_deleted_total: got %v, want 5", got)
	}
	if log := r.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, `msg="expired rows deleted" rows=audit deleted=5`) {
		t.Errorf("log: got %q, want one line with the 5 deleted rows", log)
	}
}

func TestMaintenance_KeepsRowsWithoutLimit(t *testing.T) {
	r := newMaintenanceRig(t, Config{DLQJobs: tenDays})
	r.audit(3, 10*365*24*time.Hour)
	r.m.RunDue(t.Context())
	if got := r.entries(); got != 3 {
		t.Errorf("entries kept: got %d, want 3", got)
	}
}

// If a batch fails, it is rolled back, and the run continues after retryInterval. The maintenance of
// the other tables continues.
func TestMaintenance_ContinuesAFailedRun(t *testing.T) {
	r := newMaintenanceRig(t, Config{Audit: tenDays, DLQJobs: tenDays})
	r.audit(2, tenDays+time.Second)
	r.err["DELETE FROM audit"] = errors.New("no permission")
	if next := r.m.RunDue(t.Context()); !next.Equal(r.now.Add(retryInterval)) {
		t.Errorf("next run after a failure: got %v, want %v", next, r.now.Add(retryInterval))
	}
	r.m.RunDue(t.Context())
	status, err := r.admin().Status(t.Context())
	if err != nil || status.Tables[0].NextAt != nil || status.Tables[0].Running || status.Tables[3].NextAt == nil {
		t.Errorf("status: got %+v, %v, want the audit due and the run of dlqJobs done", status, err)
	}
	delete(r.err, "DELETE FROM audit")
	r.now = r.now.Add(2 * time.Second)
	r.m.RunDue(t.Context())
	if got := r.entries(); got != 0 {
		t.Errorf("entries kept: got %d, want 0", got)
	}
	lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
	if len(lines) < 2 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "delete old rows of audit: no permission") || !strings.Contains(lines[len(lines)-1], "rows=audit deleted=2") {
		t.Errorf("log: got %q, want one warning, and then the deleted rows", lines)
	}
}

// If a process crashes in a run, another process must continue the run. The number of deleted rows must
// include the rows that both have deleted.
func TestMaintenance_ContinuesTheRunOfACrashedProcess(t *testing.T) {
	r := newMaintenanceRig(t, Config{Audit: tenDays})
	r.m.rows = 2
	r.audit(5, tenDays+time.Second)
	before := r.now.Add(-tenDays)
	for _, want := range []int{2, 2} {
		if b, err := r.m.runBatch(t.Context(), Tables[0], r.now, before); err != nil || b.deleted != want || b.ended || !b.next.IsZero() {
			t.Fatalf("batch: got %+v, %v, want %d rows of a run that goes on", b, err, want)
		}
	}
	began := r.now
	r.now = r.now.Add(time.Minute)
	r.m.RunDue(t.Context())
	status, err := r.admin().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s := status.Tables[0]; s.Deleted != 5 || s.Running || !s.StartedAt.Equal(began) || !s.EndedAt.Equal(r.now) {
		t.Errorf("status: got %+v, want 5 rows, begun at %v and ended at %v", s, began, r.now)
	}
}

func (r *maintenanceRig) admin() Admin {
	return Admin{
		Config: r.m.config, Store: r, Actor: func(*http.Request) string { return "key:1 somebody" }, Wake: func(context.Context) {},
		Now: func() time.Time { return r.now }, Log: r.m.deps.Log,
	}
}

func TestAdmin_ShowsAndRequestsRuns(t *testing.T) {
	r := newMaintenanceRig(t, Config{Audit: tenDays, CreditUse: tenDays})
	r.audit(1, tenDays+time.Second)
	admin, woken := r.admin(), 0
	admin.Wake = func(context.Context) { woken++ }
	send := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		admin.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w.Code, w.Body.String()
	}
	r.m.RunDue(t.Context())
	r.audit(1, tenDays+time.Second)
	status, body := send(http.MethodPost, "/admin/v1/maintenance/run")
	if status != http.StatusAccepted || strings.Count(body, `"requested":true`) != 2 || woken != 1 {
		t.Errorf("run: got %d %s and %d wake-ups, want 202, 2 requested tables and 1 wake-up", status, body, woken)
	}
	r.m.RunDue(t.Context())
	status, body = send(http.MethodGet, "/admin/v1/maintenance")
	want := fmt.Sprintf(`{"table":"audit","keepSeconds":864000,"oldest":"2027-01-15T08:00:00Z","requested":false,"running":false,"startedAt":"2027-01-15T08:00:00Z","endedAt":"2027-01-15T08:00:00Z","nextAt":%q,"deleted":1}`, "2027-01-15T09:00:00Z")
	if status != http.StatusOK || !strings.Contains(body, want) || !strings.Contains(body, `{"table":"dlqJobs","keepSeconds":0,"oldest":null,"requested":false,"running":false,"startedAt":null,"endedAt":null,"nextAt":null,"deleted":0}`) {
		t.Errorf("status: got %d %s, want the ended run %s", status, body, want)
	}
	entries, err := r.db.Audit(t.Context(), 1)
	if err != nil || entries[0].Action != actionRun || entries[0].Actor != "key:1 somebody" || string(entries[0].After) != `{"tables":["audit","creditUse"]}` {
		t.Errorf("audit: got %+v, %v, want the request", entries, err)
	}
	for path, want := range map[string]int{"/admin/v1/maintenance/run": http.StatusMethodNotAllowed, "/admin/v1/maintenance/x": http.StatusNotFound} {
		if status, body := send(http.MethodGet, path); status != want {
			t.Errorf("GET %s: got %d %s, want %d", path, status, body, want)
		}
	}
	_ = r.db.Close()
	if status, body = send(http.MethodPost, "/admin/v1/maintenance/run"); status != http.StatusServiceUnavailable || strings.Contains(body, "sql") {
		t.Errorf("without a database: got %d %s, want 503 without details", status, body)
	}
}

// A message on Channel must wake Run, so that a requested run starts before the next check.
func TestMaintenance_RunsWhenWoken(t *testing.T) {
	rdb, _ := servicetest.MiniRedis(t)
	r := newMaintenanceRig(t, Config{Audit: tenDays})
	r.m.deps.Poller = poll.New(Channel, rdb, r.m.deps.Log, PollFails)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.m.Run(ctx) }()
	done := func() bool {
		s, err := r.admin().Status(t.Context())
		return err == nil && !s.Tables[0].Requested && s.Tables[0].EndedAt != nil
	}
	servicetest.WaitFor(t, time.Minute, "the first run has ended", done)
	r.audit(3, tenDays+time.Second)
	admin := r.admin()
	admin.Wake = func(ctx context.Context) { poll.WakeAt(ctx, rdb, Channel, time.Now(), r.m.deps.Log) }
	if _, err := admin.Request(t.Context(), "operator"); err != nil {
		t.Fatal(err)
	}
	servicetest.WaitFor(t, time.Minute, "the requested run has ended", done)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := r.entries(); got != 1 {
		t.Errorf("entries kept: got %d, want only that of the request", got)
	}
}

func TestConfig_ChecksPeriods(t *testing.T) {
	if err := DefaultConfig().Check(); err != nil {
		t.Errorf("defaults: got %v, want no error", err)
	}
	if err := (Config{}).Check(); err != nil {
		t.Errorf("rows without limit: got %v, want no error", err)
	}
	err := Config{Audit: MinKeep, DLQJobs: MinKeep - 1, CreditUse: -time.Hour}.Check()
	want := "dlqJobs: 191h59m59.999999999s must be 0s (without limit) or at least 192h0m0s\ncreditUse: -1h0m0s must be 0s (without limit) or at least 192h0m0s"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
