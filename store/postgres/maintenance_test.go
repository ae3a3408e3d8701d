package postgres

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/retention"
	"github.com/freshet/freshet/servicetest"
)

// fillOldRows writes n rows to each table of package retention, one for each hour since 1970. Of a
// hundred rows, 99 can be deleted.
func fillOldRows(t testing.TB, s *Store, n int) {
	t.Helper()
	const at = `3600000000::bigint * n, `
	for _, sql := range []string{
		`INSERT INTO audit (at, actor, action, source, before, after, note) SELECT ` + at + `'a', 'set', '', '{}', '{}', '' FROM generate_series(1, $1) n`,
		`INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, attempts, at, correlation_id, handled, handled_at)
			SELECT 't', n % 12, n, 's', 'f', n::text, 'x', 1, ` + at + `'', CASE WHEN n % 2 = 0 THEN 'purged' ELSE '' END, 3600000000::bigint * n FROM generate_series(1, $1) n`,
		`INSERT INTO dlq_jobs (id, source, kind, filter, lane, rate, max, note, state, total, done, refused, kafka_partition, kafka_offset,
			chunk_started_at, holder, lease_until, error, created_at, created_by, updated_at, ended_at)
			SELECT n, 's', 'PURGE', '{}', '', 0, 0, '', CASE WHEN n % 100 = 0 THEN 'RUNNING' ELSE 'DONE' END, 0, 0, '{}', 0, 0, 0, '', 0, '', 1, '', ` + at + `0 FROM generate_series(1, $1) n`,
		`INSERT INTO api_keys (id, hash, name, scopes, created_at, created_by, expires_at, revoked_at)
			SELECT n, '', '', '', 1, '', CASE WHEN n % 100 = 0 THEN 0 ELSE 3600000000::bigint * n END, CASE WHEN n % 3 = 1 THEN 3600000000::bigint * n ELSE 0 END FROM generate_series(1, $1) n`,
		`INSERT INTO credit_holds (id, client, idempotency, source, facet, key, number, amount, state, created_at, expires_at, ended_at)
			SELECT n, 'key:' || n % 5000, '', 's', 'f', 'k', 1, 1, CASE WHEN n % 100 = 0 THEN 'HELD' ELSE 'CAPTURED' END, 1, 1, 3600000000::bigint * n FROM generate_series(1, $1) n`,
		`INSERT INTO credit_grants (id, client, amount, remaining, created_at, created_by, expires_at, note)
			SELECT n, 'key:' || n % 5000, 1, CASE WHEN n % 100 = 0 THEN 1 ELSE 0 END, ` + at + `'', 0, '' FROM generate_series(1, $1) n`,
		`INSERT INTO credit_entries (at, client, kind, grant_id, hold_id, amount, held, balance)
			SELECT ` + at + `'key:' || n % 5000, 'capture', '', 'h' || n, 0, -1, 1 FROM generate_series(1, $1) n`,
		`INSERT INTO credit_use (client, hour, used) SELECT 'key:' || n % 5000, n, 1 FROM generate_series(1, $1) n`,
		`INSERT INTO runs (id, source, name, scope, keys, triggered_by, definition, state, waiting, attempt, since, attempt_at, total, open, done,
			not_found, failed, cancelled, started, last_started, deadline_at, created_at, updated_at, ended_at, error, idempotency, body)
			SELECT n, 's', 'all', n, 1, 'key:a', '{}', CASE WHEN n % 100 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, false, 1, 1, 1, 1, 0, 1,
			0, 0, 0, 0, 1, 1, 1, 1, 3600000000::bigint * n, '', '', '' FROM generate_series(1, $1) n`,
		`INSERT INTO run_steps (run, no, source, facet, key, state, due_at, error, ended_at) SELECT n, 1, 's', 'user', 'k', 'DONE', 0, '', 1 FROM generate_series(1, $1) n`,
		`INSERT INTO maintenance (name) SELECT 'x' || n FROM generate_series(1, $1) n`,
		`ANALYSE`,
	} {
		var args []any
		if strings.Contains(sql, "$1") {
			args = []any{n}
		}
		if _, err := s.pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(sql, err)
		}
	}
}

// TestPlans_MaintenanceUsesIndexes checks that the statements of each table of package retention use an
// index. It checks this with and without the planner's statistics.
func TestPlans_MaintenanceUsesIndexes(t *testing.T) {
	s := open(t)
	fillOldRows(t, s, 20_000)
	type statement struct {
		name, sql, index string
		args             []any
	}
	var all []statement
	for _, table := range retention.Tables {
		bound, index := int64(10_000*time.Hour/time.Microsecond), "_kept"
		switch table.Name {
		case "creditUse":
			bound, index = 10_000, "credit_use_hour"
		case "runs":
			index = "runs_ended"
		}
		all = append(all,
			statement{table.Name + ": delete", table.DeleteStatement(), index, []any{bound, 1000}},
			statement{table.Name + ": delete nothing", table.DeleteStatement(), index, []any{0, 1000}},
			statement{table.Name + ": oldest", table.OldestStatement(), index, nil})
	}
	all = append(all,
		statement{"old entries", retention.SelectOldEntries, "credit_entries_kept", []any{int64(10_000 * time.Hour / time.Microsecond), 1000}},
		statement{"delete entry", retention.DeleteEntry, "credit_entries_pkey", []any{7}},
		statement{"opening entry", retention.AddToOpening, "credit_entries_opening", []any{1, "key:1", 1, 0}},
		statement{"old runs", retention.SelectOldRuns, "runs_ended", []any{int64(10_000 * time.Hour / time.Microsecond), 1000}},
		statement{"lock run", retention.LockOldRun, "runs_pkey", []any{"7", 1}},
		statement{"delete steps", retention.DeleteSteps, "run_steps_pkey", []any{"7", 1000}},
		statement{"reduce counters", retention.ReduceCounts, "runs_pkey", []any{"7", 1, 1, 0, 0, 0}},
		statement{"delete run", retention.DeleteRun, "runs_pkey", []any{"7"}})
	for _, statistics := range []string{"with", "without"} {
		if statistics == "without" {
			if _, err := s.pool.Exec(t.Context(), `DELETE FROM pg_statistic`); err != nil {
				t.Fatal(err)
			}
		}
		for _, st := range all {
			p := plan(t, s, "indexOnly", st.sql, st.args...)
			if strings.Contains(p, "Seq Scan") || !strings.Contains(p, st.index) {
				t.Errorf("%s, %s statistics: got the plan\n%s", st.name, statistics, p)
			}
		}
	}
}

// TestMaintenance_MakesNoSequentialScans runs the maintenance on tables with rows of several years.
// PostgreSQL must count no sequential scan.
func TestMaintenance_MakesNoSequentialScans(t *testing.T) {
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fillOldRows(t, s, 20_000)
	scans := func() string {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		var counts string
		if err := s.pool.QueryRow(t.Context(), `SELECT string_agg(relname || ' ' || seq_scan, ', ' ORDER BY relname) FROM pg_stat_user_tables
WHERE relname IN ('audit', 'dead_letters', 'dlq_jobs', 'api_keys', 'credit_holds', 'credit_grants', 'credit_entries', 'credit_use', 'runs', 'run_steps', 'maintenance')`).Scan(&counts); err != nil {
			t.Fatal(err)
		}
		return counts
	}
	before := scans()
	const keep = 17_600 * time.Hour
	config := retention.Config{
		Audit: keep, DeadLetters: keep, OpenDeadLetters: keep, DLQJobs: keep, APIKeys: keep, CreditHolds: keep, CreditGrants: keep, CreditEntries: keep, CreditUse: keep, Runs: keep,
	}
	now := time.UnixMicro(3_600_000_000 * 20_100)
	m := retention.NewMaintenance(config, retention.MaintenanceDeps{Store: s, Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	// From its sixth execution on, PostgreSQL may execute a prepared statement with a generic plan,
	// which must use the index too.
	for range 7 {
		m.RunDue(t.Context())
		now = now.Add(time.Hour)
	}
	if after := scans(); after != before {
		t.Errorf("sequential scans: got %s, want %s", after, before)
	}
	status, err := retention.Admin{Config: config, Store: s}.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range status.Tables {
		if limit := now.Add(-time.Hour - keep); table.Oldest == nil || table.Oldest.Before(limit) {
			t.Errorf("%s: got the oldest row of %v, want at least %v", table.Table, table.Oldest, limit)
		}
	}
}
