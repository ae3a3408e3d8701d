package postgres

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/storetest"
)

func open(t testing.TB) *Store {
	t.Helper()
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// The conformance suite calls each method with the database role of the process that uses the
// method. The roles have the grants of docs/deploying.md.
func TestGrants_PassTheSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Store { return openByRole(t) })
}

func TestMigrate_AppliesOnceConcurrently(t *testing.T) {
	url := servicetest.Postgres(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 4 {
		wg.Go(func() {
			ran, err := Migrate(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			applied += len(ran)
		})
	}
	wg.Wait()
	all, err := Migrations(t.Context(), url)
	if err != nil || len(all) == 0 || applied != len(all) {
		t.Fatalf("applied migrations: got %d, want %d, %v", applied, len(all), err)
	}
	for _, m := range all {
		if !m.Applied {
			t.Errorf("migration not applied: %+v", m)
		}
	}
}

// counts returns PostgreSQL's numbers of updates, HOT updates (heap-only tuples) and inserted
// rows, summed over the partitions of a table.
func counts(t *testing.T, s *Store, table string) (updated, hot, payloadRows int64) {
	t.Helper()
	// A session publishes its statistics only when it is idle. The pool has one session, and this
	// statement makes the session publish its statistics at once.
	if _, err := s.pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		t.Fatal(err)
	}
	err := s.pool.QueryRow(t.Context(), `SELECT sum(n_tup_upd), sum(n_tup_hot_upd), sum(n_tup_ins) FROM pg_stat_user_tables WHERE relname LIKE $1`,
		table+`\_%`).Scan(&updated, &hot, &payloadRows)
	if err != nil {
		t.Fatal(err)
	}
	return updated, hot, payloadRows
}

// alone returns a store with one connection to its own database, so no other test changes the
// statistics.
func alone(t *testing.T) *Store {
	t.Helper()
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestTouch_WritesNoPayloadAndIsHOT(t *testing.T) {
	s := alone(t)
	batch := func(version int64) []store.Write {
		var writes []store.Write
		for i := range 200 {
			writes = append(writes, store.Write{
				Entity:  schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint(i)},
				Version: version, CheckedAt: time.UnixMicro(version),
				Payload: func() (store.Payload, error) { return store.Encode([]byte(strings.Repeat("x", 5000))), nil },
			})
		}
		return writes
	}
	rowVersions := func() []string {
		rows, err := s.pool.Query(t.Context(), "SELECT key, xmin::text, ctid::text FROM snapshot_payload ORDER BY key")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var all []string
		for rows.Next() {
			var key, xmin, ctid string
			if err := rows.Scan(&key, &xmin, &ctid); err != nil {
				t.Fatal(err)
			}
			all = append(all, key+" "+xmin+" "+ctid)
		}
		return all
	}
	if _, err := s.Write(t.Context(), batch(1)); err != nil {
		t.Fatal(err)
	}
	before := rowVersions()
	for version := int64(2); version <= 4; version++ {
		if _, err := s.Write(t.Context(), batch(version)); err != nil {
			t.Fatal(err)
		}
	}
	if after := rowVersions(); len(after) != 200 || !reflect.DeepEqual(before, after) {
		t.Error("unchanged checks wrote payloads")
	}
	if updated, _, inserted := counts(t, s, "snapshot_payload"); updated != 0 || inserted != 200 {
		t.Errorf("payloads: got %d updates, %d inserts", updated, inserted)
	}
	// Most updates must be HOT (heap-only tuples). Inserts fill a page to 70 % only, and an update
	// is HOT if the new version of the row fits into the free space of the page. Not all are HOT:
	// the space of old versions is free only after PostgreSQL has pruned the page.
	if updated, hot, _ := counts(t, s, "snapshot_state"); updated != 600 || hot < 500 {
		t.Errorf("states: got %d updates, %d of them HOT", updated, hot)
	}
}

func TestPayload_IsStoredUncompressedOutOfLine(t *testing.T) {
	s := open(t)
	var storage string
	err := s.pool.QueryRow(t.Context(), `SELECT string_agg(DISTINCT attstorage::text, '') FROM pg_attribute
WHERE attname = 'payload' AND attrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'snapshot_payload'::regclass)`).Scan(&storage)
	if err != nil || storage != "e" {
		t.Errorf("storage of the payload: got %q, %v, want e (external)", storage, err)
	}
}

func TestOpen_NamesTheUnreachableDatabase(t *testing.T) {
	for url, mention := range map[string]string{
		"postgres://127.0.0.1:1/x?connect_timeout=1": "connect to the database",
		"postgres://127.0.0.1:port/x":                "database.url",
	} {
		if _, err := Open(context.Background(), url); err == nil || !strings.Contains(err.Error(), mention) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestChangeSetting_RollsBackWithoutAudit(t *testing.T) {
	s := open(t)
	setting := store.Setting{Source: "nexon", Value: []byte("{}"), Revision: 1}
	entry := store.AuditEntry{Before: []byte("not JSON"), After: []byte("{}")}
	if err := s.ChangeSetting(t.Context(), setting, entry); err == nil || !strings.Contains(err.Error(), "settings of nexon") {
		t.Errorf("ChangeSetting: got error %v", err)
	}
	if got, err := s.Setting(t.Context(), "nexon"); err != nil || got.Revision != 0 {
		t.Errorf("setting: got %+v, %v", got, err)
	}
}

func TestDeleteSnapshot_RollsBackWithoutAudit(t *testing.T) {
	s := open(t)
	w := benchWrites(1, 1, 1)
	if _, err := s.Write(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	entry := store.AuditEntry{Before: []byte("not JSON"), After: []byte("{}")}
	if existed, err := s.DeleteSnapshot(t.Context(), w[0].Entity, entry); existed || err == nil || !strings.Contains(err.Error(), "delete all rows of s/f/") {
		t.Errorf("DeleteSnapshot: got %v, %v", existed, err)
	}
	if got, err := s.Get(t.Context(), w[0].Entity); err != nil || len(got.Payload) == 0 {
		t.Errorf("snapshot: got %+v, %v", got.State, err)
	}
	if err := s.WriteAudit(t.Context(), entry); err == nil {
		t.Error("an audit entry with invalid JSON was stored")
	}
}

// TestDelete_KeepsConcurrentWritesWhole commits an entity's first snapshot in the middle of a
// deletion, after the deletion has found no state. Afterwards both state and payload must be
// stored, or neither.
func TestDelete_KeepsConcurrentWritesWhole(t *testing.T) {
	for name, remove := range map[string]func(s *Store, w store.Write) error{
		"by a person": func(s *Store, w store.Write) error {
			_, err := s.DeleteSnapshot(t.Context(), w.Entity, store.AuditEntry{Before: []byte("{}"), After: []byte("{}")})
			return err
		},
		"alone": func(s *Store, w store.Write) error { return s.Delete(t.Context(), w.Entity) },
	} {
		s := open(t)
		w := benchWrites(1, 1, 1)
		// The deletion of the state waits at its end for a lock that this transaction has.
		tx, err := s.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		for _, statement := range []string{
			`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`,
			`CREATE TRIGGER wait AFTER DELETE ON snapshot_state FOR EACH STATEMENT EXECUTE FUNCTION wait()`,
		} {
			if _, err := s.pool.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(1)`); err != nil {
			t.Fatal(err)
		}
		removed := make(chan error)
		go func() { removed <- remove(s, w[0]) }()
		waitForLock(t, s)
		if _, err := s.Write(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-removed; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := s.Get(t.Context(), w[0].Entity); err != nil || got.HasContent() != (len(got.Payload) > 0) {
			t.Errorf("%s: %+v has %d bytes of payload, %v", name, got.State, len(got.Payload), err)
		}
	}
}

func TestClaimRetries_UsesItsIndex(t *testing.T) {
	s := open(t)
	_, err := s.pool.Exec(t.Context(), `INSERT INTO update_status
SELECT 's', 'f', n::text, CASE WHEN n % 3 = 0 THEN 'FAILED' ELSE 'RETRYING' END, '', '', 1, 0, n, n, 'LOW', '{}', '', '', n, n FROM generate_series(1, 20000) n`)
	if err != nil {
		t.Fatal(err)
	}
	for sql, args := range map[string][]any{
		claimDueRetries:            {"s", 20000, 100, 30000},
		shared.SelectNextRetryTime: {"s"},
	} {
		rows, err := s.pool.Query(t.Context(), "EXPLAIN "+sql, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan := strings.Join(lines, "\n")
		if err != nil || !strings.Contains(plan, "Scan using update_status_due on") || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%v\n%s", err, plan)
		}
	}
}

func TestPlans_ManyEntitiesUseTheKey(t *testing.T) {
	s := open(t)
	if _, err := s.Write(t.Context(), benchWrites(2000, 5, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), "ANALYSE"); err != nil {
		t.Fatal(err)
	}
	var cols entities
	for _, w := range benchWrites(500, 5, 1) {
		cols.add(w.Entity)
	}
	for _, sql := range []string{selectStates, selectSnapshots} {
		rows, err := s.pool.Query(t.Context(), "EXPLAIN "+sql, cols.sources, cols.facets, cols.keys)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		plan := strings.Join(lines, "\n")
		// Plans with hash or merge joins read whole tables.
		if err != nil || strings.Contains(plan, "Hash") || strings.Contains(plan, "Merge") {
			t.Errorf("%v\n%s", err, plan)
		}
	}
}
