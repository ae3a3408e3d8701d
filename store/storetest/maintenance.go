package storetest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/credits"
	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/store"
)

// runMaintenance runs the tests of the deletion of old rows.
func runMaintenance(t *testing.T, open func(t *testing.T) Store) {
	for _, test := range []struct {
		name string
		run  func(b suite)
	}{
		{"old rows are deleted, oldest first", testOldRows},
		{"ledger: old entries become one", testCarryForward},
		{"grant with an open hold is kept", testGrantOfOpenHold},
		{"old runs and their steps", testOldRuns},
		{"maintenance: requested and due runs", testMaintenanceRuns},
		{"maintenance: concurrent runs", testMaintenanceRace},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(suite{t, open(t)}) })
	}
}

// SchedulerStore is implemented by a store that connects with a separate database role for each kind of process.
type SchedulerStore interface {
	// SchedulerTx returns the transactions of a scheduler.
	SchedulerTx() retention.TxStore
}

func (b suite) schedulerTx() retention.TxStore {
	if roles, ok := b.store.(SchedulerStore); ok {
		return roles.SchedulerTx()
	}
	return b.store
}

// oldRows describes rows of one table of package retention for the tests.
type oldRows struct {
	table string
	// returns the statement that inserts row n, whose retention period begins at the time at, in
	// microseconds
	row   func(n int, at int64) string
	kept  []string // statements that insert rows which must never be deleted
	added int      // number of rows that Delete inserts while it deletes the old rows
}

const hour = int64(time.Hour / time.Microsecond)

// rowsOf describes rows of each table of package retention. Rows that must never be deleted have
// numbers above 100.
var rowsOf = map[string]oldRows{
	"audit": {table: "audit", row: func(n int, at int64) string {
		return fmt.Sprintf(`INSERT INTO audit (at, actor, action, source, before, after, note) VALUES (%d, 'a', 'set', '', '{}', '{}', '%d')`, at, n)
	}},
	"deadLetters": {
		table: "dead_letters", row: func(n int, at int64) string { return deadLetterRow(n, 1, at, "purged") },
		kept: []string{deadLetterRow(101, 5000*hour, 0, "")},
	},
	"openDeadLetters": {
		table: "dead_letters", row: func(n int, at int64) string { return deadLetterRow(200+n, at, 0, "") },
		kept: []string{deadLetterRow(301, 1, 1, "replayed")},
	},
	"dlqJobs": {
		table: "dlq_jobs", row: func(n int, at int64) string { return jobRow(n, "DONE", 0, at) },
		kept: []string{jobRow(101, "RUNNING", 0, 1), jobRow(102, "STOPPED", 1, 1)},
	},
	"apiKeys": {
		table: "api_keys", row: func(n int, at int64) string {
			if n%2 == 0 {
				return keyRow(n, 1, at) // the key expired first, and was revoked at the time at
			}
			return keyRow(n, at, 0)
		},
		kept: []string{keyRow(101, 0, 0)},
	},
	"creditHolds": {
		table: "credit_holds", row: func(n int, at int64) string { return holdRow(n, "CAPTURED", at) },
		kept: []string{holdRow(101, "HELD", 0)},
	},
	"creditGrants": {
		table: "credit_grants", row: func(n int, at int64) string { return grantRow(n, 0, at) },
		kept: []string{grantRow(101, 1, 1)},
	},
	"creditEntries": {table: "credit_entries", row: func(n int, at int64) string { return entryRow(n, at) }, added: 1},
	"creditUse": {table: "credit_use", row: func(n int, at int64) string {
		return fmt.Sprintf(`INSERT INTO credit_use (client, hour, used) VALUES ('%d', %d, 1)`, n, at/hour)
	}},
	"runs": {
		table: "runs", row: func(n int, at int64) string { return runRow(n, "COMPLETED", at) },
		kept: []string{runRow(101, "RUNNING", 0)},
	},
}

func deadLetterRow(n int, at, handledAt int64, handled string) string {
	return fmt.Sprintf(`INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, attempts, at, correlation_id, handled, handled_at)
VALUES ('t', 0, %d, 's', 'f', 'k', 'x', 1, %d, '', '%s', %d)`, n, at, handled, handledAt)
}

func jobRow(n int, state string, chunk, updated int64) string {
	return fmt.Sprintf(`INSERT INTO dlq_jobs (id, source, kind, filter, lane, rate, max, note, state, total, done, refused, kafka_partition, kafka_offset,
chunk_started_at, holder, lease_until, error, created_at, created_by, updated_at, ended_at)
VALUES ('%d', 's', 'PURGE', '{}', '', 0, 0, '', '%s', 0, 0, '{}', 0, 0, %d, '', 0, '', 1, '', %d, 0)`, n, state, chunk, updated)
}

func keyRow(n int, expires, revoked int64) string {
	return fmt.Sprintf(`INSERT INTO api_keys (id, hash, name, scopes, created_at, created_by, expires_at, revoked_at) VALUES ('%d', '', '', '', 1, '', %d, %d)`, n, expires, revoked)
}

func holdRow(n int, state string, ended int64) string {
	return fmt.Sprintf(`INSERT INTO credit_holds (id, client, idempotency, source, facet, key, number, amount, state, created_at, expires_at, ended_at)
VALUES ('%d', 'key:%d', '', 's', 'f', 'k', 1, 1, '%s', 1, 1, %d)`, n, n, state, ended)
}

func grantRow(n int, remaining, created int64) string {
	return fmt.Sprintf(`INSERT INTO credit_grants (id, client, amount, remaining, created_at, created_by, expires_at, note) VALUES ('%d', 'key:1', 1, %d, %d, '', 0, '')`, n, remaining, created)
}

func entryRow(n int, at int64) string {
	return fmt.Sprintf(`INSERT INTO credit_entries (at, client, kind, grant_id, hold_id, amount, held, balance) VALUES (%d, 'key:1', 'capture', '', '%d', 1, 0, %d)`, at, n, n)
}

// runRow inserts a run without steps.
func runRow(n int, state string, ended int64) string {
	return fmt.Sprintf(`INSERT INTO runs (id, source, name, scope, keys, triggered_by, definition, state, waiting, attempt, since, attempt_at, total, open, done,
not_found, failed, cancelled, started, last_started, deadline_at, created_at, updated_at, ended_at, error, idempotency, body)
VALUES ('%d', 's', 'all', '%d', 1, 'key:a', '{}', '%s', false, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, %d, '', '', '')`, n, n, state, ended)
}

// insertAll executes statements that insert rows. If each kind of process has its own database role,
// dead letters are inserted with the role of a worker.
func (b suite) insertAll(statements ...string) {
	b.Helper()
	var tx retention.TxStore = b.store
	if roles, ok := b.store.(WorkerStore); ok && strings.HasPrefix(statements[0], "INSERT INTO dead_letters") {
		tx = roles.WorkerTx()
	}
	all := make([]store.Statement, len(statements))
	for i, text := range statements {
		all[i].Text = text
	}
	if err := tx.InTx(b.Context(), func(tx store.Tx) error { return tx.Commit(b.Context(), all...) }); err != nil {
		b.Fatal(err, statements[0])
	}
}

// number returns the number that a query returns in its only row; -1 means that the query returns no row.
func (b suite) number(query string, args ...any) (n int64) {
	b.Helper()
	n = -1
	if err := b.store.InTx(b.Context(), func(tx store.Tx) error {
		return tx.Query(b.Context(), func(scan func(...any) error) error { return scan(&n) }, query, args...)
	}); err != nil {
		b.Fatal(err)
	}
	return n
}

// deleteOld deletes one batch of old rows, as a scheduler does.
func (b suite) deleteOld(t retention.Table, before time.Time, limit int) (deleted int) {
	b.Helper()
	if err := b.schedulerTx().InTx(b.Context(), func(tx store.Tx) (err error) {
		deleted, err = t.Delete(b.Context(), tx, before, limit)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return deleted
}

// testOldRows deletes the old rows of each table in batches of three. Rows whose period begins at the
// given time or later must be kept, and rows that must never be deleted too.
func testOldRows(b suite) {
	for _, t := range retention.Tables {
		rows, known := rowsOf[t.Name]
		if !known {
			b.Errorf("%s: there are no rows in rowsOf; add a function that inserts a row", t.Name)
			continue
		}
		before, found := time.UnixMicro(1000*hour), b.number("SELECT count(*) FROM "+rows.table)
		all := slices.Clone(rows.kept)
		for n := range 7 {
			all = append(all, rows.row(n, (999-int64(n))*hour))
		}
		b.insertAll(append(all, rows.row(7, 1000*hour), rows.row(8, 1001*hour))...)
		unit := hour
		if t.Name == "creditUse" {
			unit = 1
		}
		for i, want := range []int{3, 3, 1, 0} {
			if got := b.deleteOld(t, before, 3); got != want {
				b.Errorf("%s, batch %d: got %d rows deleted, want %d", t.Name, i, got, want)
			}
			if got, want := b.number(t.OldestStatement())/unit, []int64{996, 999, 1000, 1000}[i]; got != want {
				b.Errorf("%s, batch %d: got the oldest row at %d h, want %d h", t.Name, i, got, want)
			}
		}
		if got, want := b.number("SELECT count(*) FROM "+rows.table)-found, int64(2+len(rows.kept)+rows.added); got != want {
			b.Errorf("%s: got %d rows kept, want %d", t.Name, got, want)
		}
	}
}

func tableOf(b suite, name string) retention.Table {
	b.Helper()
	for _, t := range retention.Tables {
		if t.Name == name {
			return t
		}
	}
	b.Fatalf("package retention has no table %s", name)
	return retention.Table{}
}

// testCarryForward deletes old entries of the ledger of credits. After each batch the sums of the
// ledger must match the balances. A hold whose entries are old must still be released.
func testCarryForward(b suite) {
	c, entries := b.credits(), tableOf(b, "creditEntries")
	held := c.hold(client, "a", "b", "c")
	c.hold("key:2 other", "a")
	c.end(held[0].Hold, credits.Captured)
	c.end(held[1].Hold, credits.Released)
	c.clock.Store(100)
	total := 0
	for n := -1; n != 0; total += n {
		n = b.deleteOld(entries, at(50), 2)
		c.verify()
	}
	if total != 6 { // two grants; hold and capture of the first ended hold; hold and release of the second one
		b.Errorf("entries deleted: got %d, want 6", total)
	}
	if got := b.number("SELECT count(*) FROM credit_entries WHERE kind = 'opening'"); got != 2 {
		b.Errorf("opening entries: got %d, want one of each of the 2 clients", got)
	}
	if got := b.number("SELECT count(*) FROM credit_entries WHERE kind <> 'opening'"); got != 2 {
		b.Errorf("other entries: got %d, want the 2 entries of the open holds", got)
	}
	c.want(client, 6, 2)
	if !c.end(held[2].Hold, credits.Released) {
		b.Error("the open hold did not end")
	}
	c.want(client, 8, 0)
	c.clock.Store(200)
	if got := b.deleteOld(entries, at(150), 100); got != 2 {
		b.Errorf("entries deleted after the end of the hold: got %d, want 2", got)
	}
	if got := b.number("SELECT amount FROM credit_entries WHERE kind = 'opening' AND client = $1", client); got != 8 {
		b.Errorf("opening entry: got %d, want the balance 8", got)
	}
	c.want(client, 8, 0)
}

// testGrantOfOpenHold: a grant must be kept while a hold has credits of the grant, because the hold may
// be released.
func testGrantOfOpenHold(b suite) {
	c, grants := b.credits(), tableOf(b, "creditGrants")
	held := c.hold(client, "a", "b", "c", "d", "e") // these holds take all 10 credits of the plan
	if got := b.deleteOld(grants, at(1000), 10); got != 0 {
		b.Errorf("grants deleted while a hold is open: got %d, want 0", got)
	}
	for i, h := range held {
		c.end(h.Hold, []credits.State{credits.Captured, credits.Released}[min(i, 1)])
	}
	c.want(client, 8, 0)
	c.hold(client, "f", "g", "h", "i")
	c.want(client, 0, 8)
}

// maintenance returns the Maintenance of one process. It keeps entries of the audit for 10 days, and
// rows of all other tables without limit.
func (b suite) maintenance(now func() time.Time) *retention.Maintenance {
	return retention.NewMaintenance(retention.Config{Audit: 240 * time.Hour}, retention.MaintenanceDeps{
		Store: b.schedulerTx(), Now: now, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
}

func testMaintenanceRuns(b suite) {
	now := time.UnixMicro(10_000 * hour).UTC()
	m := b.maintenance(func() time.Time { return now })
	admin := retention.Admin{Config: retention.Config{Audit: 240 * time.Hour}, Store: b.store, Now: func() time.Time { return now }, Wake: func(context.Context) {}}
	statusOf := func() retention.TableStatus {
		b.Helper()
		s, err := admin.Status(b.Context())
		if err != nil || len(s.Tables) != len(retention.Tables) {
			b.Fatalf("Status: got %+v, %v, want %d tables", s, err, len(retention.Tables))
		}
		return s.Tables[0]
	}
	audit := rowsOf["audit"].row
	b.insertAll(audit(1, 9000*hour), audit(2, 9001*hour), audit(3, 9999*hour))
	if s := statusOf(); s.Table != "audit" || s.KeepSeconds != 864_000 || s.Oldest == nil || !s.Oldest.Equal(time.UnixMicro(9000*hour)) || s.NextAt != nil || s.EndedAt != nil {
		b.Errorf("before the first run: got %+v, want the oldest row and no run", s)
	}
	next := now.Add(time.Hour)
	if got := m.RunDue(b.Context()); !got.Equal(next) {
		b.Errorf("next run: got %v, want %v", got, next)
	}
	if s := statusOf(); s.Deleted != 2 || s.Running || s.EndedAt == nil || !s.EndedAt.Equal(now) || s.NextAt == nil || !s.NextAt.Equal(next) {
		b.Errorf("after the first run: got %+v, want 2 deleted rows and the next run at %v", s, next)
	}
	b.insertAll(audit(4, 9000*hour))
	now = now.Add(time.Minute)
	if got := m.RunDue(b.Context()); !got.Equal(next) || statusOf().Deleted != 2 {
		b.Errorf("run before its time: got the next run %v, %+v, want no run", got, statusOf())
	}
	requested, err := admin.Request(b.Context(), "operator")
	if err != nil {
		b.Fatal(err)
	}
	if s := requested.Tables[0]; !s.Requested || s.NextAt != nil {
		b.Errorf("after the request: got %+v, want a requested run that is due", s)
	}
	m.RunDue(b.Context())
	if s := statusOf(); s.Requested || s.Deleted != 1 || !s.EndedAt.Equal(now) {
		b.Errorf("after the requested run: got %+v, want 1 deleted row", s)
	}
	if entries, err := b.store.Audit(b.Context(), 1); err != nil || entries[0].Action != "maintenance-run" || entries[0].Actor != "operator" || string(entries[0].After) != `{"tables":["audit"]}` {
		b.Errorf("audit: got %+v, %v, want the request of the run", entries, err)
	}
}

// testMaintenanceRace runs the maintenance in several processes at the same time. Each row must be
// deleted once, and counted once.
func testMaintenanceRace(b suite) {
	now := time.UnixMicro(10_000 * hour)
	var rows []string
	for n := range 2500 {
		rows = append(rows, rowsOf["audit"].row(n, int64(n)+1))
	}
	b.insertAll(rows...)
	admin := retention.Admin{Config: retention.Config{Audit: 240 * time.Hour}, Store: b.store}
	var wg sync.WaitGroup
	for range 3 {
		m := b.maintenance(func() time.Time { return now })
		wg.Go(func() { m.RunDue(b.Context()) })
	}
	wg.Wait()
	s, err := admin.Status(b.Context())
	if err != nil || s.Tables[0].Deleted != int64(len(rows)) || s.Tables[0].Running {
		b.Errorf("status: got %+v, %v, want one run that has deleted %d rows", s.Tables[0], err, len(rows))
	}
	if left := b.number("SELECT count(*) FROM audit"); left != 0 {
		b.Errorf("rows left: got %d, want 0", left)
	}
}
