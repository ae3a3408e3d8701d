package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
)

// fillEntities writes n entities of source s and facet f, each with a snapshot and every 20th with
// a status. The entities are due one millisecond apart, beginning in 1970.
func fillEntities(t testing.TB, s *Store, n int) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO entities SELECT 's', 'f', 'key-' || lpad(n::text, 9, '0'), '{"ocid":"0123456789abcdef"}', n % 3, n % 50 <> 0,
			1000 * ((n * 7919::bigint) % $1), 1, 1, 0.5, 3600000000, 1.5, 1 FROM generate_series(0, $1 - 1) n`,
		`INSERT INTO snapshot_state SELECT 's', 'f', 'key-' || lpad(n::text, 9, '0'), 1, sha256(n::text::bytea), 0, 'zstd', 17000, 1, 1, 1, false, '', ''
			FROM generate_series(0, $1 - 1) n`,
		`INSERT INTO update_status SELECT 's', 'f', 'key-' || lpad((20 * n)::text, 9, '0'), 'RETRYING', '', '', 1, 0, 1, n, 'LOW', '{}', '', '', 1, 1
			FROM generate_series(0, $1 / 20 - 1) n`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql, n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(t.Context(), "VACUUM ANALYSE"); err != nil {
		t.Fatal(err)
	}
}

// plan returns the query plan of a statement. EXPLAIN runs in a transaction that is rolled back.
func plan(t testing.TB, s *Store, options, sql string, args ...any) string {
	t.Helper()
	var begin pgx.TxOptions
	if strings.Contains(options, "indexOnly") {
		begin = indexOnly
	}
	tx, err := s.pool.BeginTx(t.Context(), begin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	options = strings.ReplaceAll(options, "indexOnly", "COSTS")
	rows, err := tx.Query(t.Context(), "EXPLAIN ("+options+") "+sql, args...)
	if err != nil {
		t.Fatal(sql, err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(sql, err)
	}
	return strings.Join(lines, "\n")
}

// keysOf returns the keys of the first n entities and a decision for each, as arguments of
// statements.
func keysOf(t testing.TB, s *Store, n int) (cols entities, moves *prefetched.Decisions) {
	t.Helper()
	page, err := s.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, n)
	if err != nil {
		t.Fatal(err)
	}
	var c prefetched.Claim
	var candidates []prefetched.Candidate
	for _, r := range page {
		cols.add(r.Entity)
		candidates = append(candidates, prefetched.Candidate{RegisteredEntity: r})
	}
	return cols, c.Decide(candidates, func(c prefetched.Candidate) prefetched.Decision {
		return prefetched.Decision{Due: c.Due, History: c.History}
	})
}

// TestPlans_RegularStatementsUseIndexes checks that the regular statements use indexes: first with
// the planner's statistics, then without statistics, as after an import.
func TestPlans_RegularStatementsUseIndexes(t *testing.T) {
	s := open(t)
	fillEntities(t, s, 20_000)
	for _, sql := range []string{
		`INSERT INTO schedule_claims SELECT n::text, 's', n, n, '[]' FROM generate_series(1, 5000) n`,
		`INSERT INTO schedule_state SELECT n::text, 1, 1 FROM generate_series(1, 5000) n`,
		`INSERT INTO outbox (source, facet, key, version, at, before, after, publish_change, triggers, due_at)
			SELECT 's', 'f', n::text, 1, n, '', '', true, '[]', n FROM generate_series(1, 20000) n`,
		`INSERT INTO dead_letters (topic, kafka_partition, kafka_offset, source, facet, key, reason, attempts, at, correlation_id, job)
			SELECT 't', 0, n, 's', 'f', n::text, 'x', 1, n, '', CASE WHEN n % 10 = 0 THEN 'j' || n / 1000 ELSE '' END FROM generate_series(1, 20000) n`,
		`INSERT INTO retention_walks SELECT n::text, 'f', '' FROM generate_series(1, 5000) n`,
		`ANALYSE`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cols, moves := keysOf(t, s, 1000)
	all, err := s.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := registeredColumns(all)
	if err != nil {
		t.Fatal(err)
	}
	var c columns
	for _, r := range all {
		c.add(store.Write{Entity: r.Entity, Version: 5, CheckedAt: r.Due})
	}
	publishes, triggers, quiets, ids := make([]bool, len(all)), make([]string, len(all)), make([]string, len(all)), make([]int64, len(all))
	for i := range all {
		triggers[i], ids[i], quiets[i] = "[]", int64(7*i), []string{"", "g"}[i%2]
	}
	tier, enabled := prefetched.Hot, true
	list, listArgs := prefetched.Filter{Source: "s", Facet: "f", Tier: &tier, Enabled: &enabled, KeyPrefix: "key-0000"}.
		SelectEntities(schemas.Entity{Source: "s", Facet: "f", Key: "key-000000500"}, 500)
	keys := store.KeyRange{Source: "s", Facet: "f", KeyPrefix: "key-0000"}
	states, statesArgs := shared.SelectStates(keys, "key-000000500", 2000)
	statuses, statusesArgs := shared.SelectStatuses(keys, "key-000000500", 50)
	ofJob, ofJobArgs := deadletters.Filter{}.SelectOfJob("j7", 100)
	waiting := store.Status{Entity: all[7].Entity, Aliases: []store.State{{Entity: all[7].Entity}}, AliasFailures: []int64{0}}
	recheck, recheckArgs := shared.RecheckAlias(waiting, 0)
	statements := []struct {
		name, options, sql, index string
		args                      []any
	}{
		{"due", "indexOnly", claimDueEntities, "entities_due", []any{"s", 3_000_000, 1000}},
		{"all due", "indexOnly", claimDueEntities, "entities_due", []any{"s", 1 << 50, 1000}},
		{"none due", "indexOnly", claimDueEntities, "entities_due", []any{"s", -1, 1000}},
		{"due later", "indexOnly", prefetched.SelectEntitiesDueAfter, "entities_due", []any{"s", 3_000_000, 1000}},
		{"bring forward", "COSTS", prefetched.BringForward, "entities_pkey", []any{"s", "f", "key-000000007", 5}},
		{"states", "COSTS", selectStates, "snapshot_state_", []any{cols.sources, cols.facets, cols.keys}},
		{"params", "indexOnly", selectParams, "entities_pkey", []any{cols.sources, cols.facets, cols.keys}},
		{"statuses", "COSTS", selectStatuses, "update_status_pkey", []any{cols.sources, cols.facets, cols.keys}},
		{"touch", "indexOnly", touch, "snapshot_state_", []any{
			cols.sources, cols.facets, cols.keys, c.versions, c.checked, c.hashes, c.extracts, c.fetched, c.etags, c.modified, c.visibilities, c.manuals, false,
		}},
		{"not found", "indexOnly", notFound, "snapshot_payload_", []any{cols.sources, cols.facets, cols.keys, c.versions, c.checked, c.visibilities, c.manuals, c.manuals}},
		{"lock aliases", "indexOnly", lockAliases, "snapshot_state_", []any{cols.sources, cols.facets, cols.keys}},
		{"mark alias users", "indexOnly", markUsers, "snapshot_state_", []any{cols.sources, cols.facets, cols.keys}},
		{"wake aliases", "indexOnly", wakeAliases, "update_status_pkey", []any{cols.sources, cols.facets, cols.keys, c.checked}},
		{"recheck alias", "COSTS", recheck, "update_status_pkey", recheckArgs},
		{"end failures", "indexOnly", deleteStatuses, "update_status_pkey", []any{cols.sources, cols.facets, cols.keys, c.versions}},
		{"lock states", "indexOnly", lockStates, "snapshot_state_", []any{cols.sources, cols.facets, cols.keys}},
		{"hashes", "indexOnly", selectHashes, "snapshot_state_", []any{cols.sources, cols.facets, cols.keys}},
		{"insert outbox events", "indexOnly", insertOutboxEvents, "Insert on outbox", []any{
			cols.sources, cols.facets, cols.keys, c.versions, c.checked, c.hashes, c.hashes, publishes, triggers, c.checked, quiets, c.checked,
		}},
		{"claim outbox events", "indexOnly", claimOutboxEvents, "outbox_due", []any{"s", 20_000, 1000, 30_000}},
		{"claim without outbox events", "indexOnly", claimOutboxEvents, "outbox_due", []any{"s", -1, 1000, 30_000}},
		{"next outbox time", "COSTS", shared.SelectNextOutboxTime, "outbox_due", []any{"s"}},
		{"delete outbox events", "indexOnly", deleteOutboxEvents, "outbox_pkey", []any{ids}},
		{"move", "indexOnly", updateEntities, "entities_pkey", moves.Columns("s")},
		{"next due", "COSTS", prefetched.SelectNextDueEntity, "entities_due", []any{"s"}},
		{"abandoned", "COSTS", takeOverClaim, "schedule_claims_until", []any{"s", 1000, "x", 1}},
		{"renew", "COSTS", prefetched.RenewClaim, "schedule_claims_pkey", []any{"7", 1}},
		{"finish", "COSTS", prefetched.DeleteClaim, "schedule_claims_pkey", []any{"7"}},
		{"register", "COSTS", registerEntities, "entities_pkey", rows},
		{"reads", "COSTS", countReads, "entities_pkey", rows},
		{"enabled", "COSTS", prefetched.SetEntityEnabled, "entities_pkey", []any{"s", "f", "key-000000007", true}},
		{"delete", "COSTS", shared.DeleteEntity, "entities_pkey", []any{"s", "f", "key-000000007"}},
		{"delete state", "COSTS", store.DeleteState, "snapshot_state_", []any{"s", "f", "key-000000007"}},
		{"delete status", "COSTS", store.DeleteStatus, "update_status_pkey", []any{"s", "f", "key-000000007"}},
		{"list", "COSTS", list, "entities_pkey", listArgs},
		{"states in a key range", "COSTS", states, "snapshot_state_", statesArgs},
		{"statuses in a key range", "indexOnly", statuses, "update_status_pkey", statusesArgs},
		{"registrations", "indexOnly", selectRegistrations, "entities_pkey", []any{cols.sources, cols.facets, cols.keys}},
		{"dead letters of a job", "COSTS", ofJob, "dead_letters_job", ofJobArgs},
		{"due tiers", "COSTS", prefetched.SelectTierBacklogs, "entities_due", []any{"s", 1 << 50, 2000}},
		{"due retries", "COSTS", shared.SelectRetryBacklog, "update_status_due", []any{"s", 1 << 50, 2000}},
		{"outbox backlog", "COSTS", shared.SelectOutboxBacklog, "outbox_due", []any{"s", 1 << 50, 2000}},
		{"price", "COSTS", prefetched.SelectPrice, "schedule_state_pkey", []any{"7"}},
		{"set price", "COSTS", prefetched.SetPrice, "schedule_state_pkey", []any{"7", 1.5, 5, 4}},
		{"walk", "indexOnly", lockRetentionWalk, "retention_walks_pkey", []any{"7", "f"}},
		{"move walk", "indexOnly", shared.UpdateRetentionWalk, "retention_walks_pkey", []any{"7", "f", "x"}},
		{"expired", "indexOnly", shared.SelectExpired, "snapshot_state_", []any{"s", "f", "key-000010000", 5, 5, 1000}},
		{"delete expired", "indexOnly", shared.DeleteExpiredState, "snapshot_state_", []any{"s", "f", "key-000010000", 5, 5}},
		{"delete payload", "indexOnly", store.DeleteOrphans[0], "snapshot_", []any{"s", "f", "key-000010000"}},
	}
	for _, statistics := range []string{"with", "without"} {
		if statistics == "without" {
			if _, err := s.pool.Exec(t.Context(), `DELETE FROM pg_statistic`); err != nil {
				t.Fatal(err)
			}
		}
		for _, st := range statements {
			p := plan(t, s, st.options, st.sql, st.args...)
			if strings.Contains(p, "Seq Scan") || !strings.Contains(p, st.index) {
				t.Errorf("%s, %s statistics: got the plan\n%s", st.name, statistics, p)
			}
		}
	}
}

// TestEntities_ReadsAndUpdatesAreHOT checks that PostgreSQL needs no index entry for the UPDATE
// statements that store the number of reads or the tier of an entity. They are heap-only tuple (HOT)
// updates, because they write no indexed column.
func TestEntities_ReadsAndUpdatesAreHOT(t *testing.T) {
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const entities, rounds = 600, 40
	var all []prefetched.RegisteredEntity
	for i := range entities {
		e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint(i)}
		all = append(all, prefetched.RegisteredEntity{Entity: e, Pinned: true, Enabled: true, Due: time.UnixMicro(1)})
	}
	if _, err := s.RegisterEntities(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	// In each round, one entity in twenty is read and one in twenty moves to another tier.
	for round := range rounds {
		var moved []prefetched.RegisteredEntity
		var reads []prefetched.EntityReads
		for i, r := range all {
			if i%20 == round%20 {
				reads = append(reads, prefetched.EntityReads{Entity: r.Entity, Count: 1, At: time.UnixMicro(9)})
			}
			if i%20 == (round+7)%20 {
				r.Tier = prefetched.Tier(1 + round/20)
				moved = append(moved, r)
			}
		}
		if err := s.ObserveReads(t.Context(), reads, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := s.RegisterEntities(t.Context(), moved); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		t.Fatal(err)
	}
	var updated, hot, inserted int
	if err := s.pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd, n_tup_ins FROM pg_stat_user_tables WHERE relname = 'entities'`).
		Scan(&updated, &hot, &inserted); err != nil {
		t.Fatal(err)
	}
	if updated != 2*rounds*entities/20 || hot < updated*9/10 || inserted != entities {
		t.Errorf("got %d updates, %d of them HOT, %d inserts", updated, hot, inserted)
	}
	t.Logf("%d updated, %d of them on their page", updated, hot)
}

// TestPlans_BatchesUseIndexes runs the statements for batches of rows and checks that
// PostgreSQL counts no sequential scan. Without the setting indexOnly, the statement that updates
// the time of the last check read the whole table to update 500 of 200,000 snapshots, and took 15
// times as long.
func TestPlans_BatchesUseIndexes(t *testing.T) {
	url := servicetest.PostgresCopy(t, &template)
	s, err := Open(t.Context(), url+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fillEntities(t, s, 20_000)
	if _, err := s.pool.Exec(t.Context(), `INSERT INTO outbox (source, facet, key, version, at, before, after, publish_change, triggers, due_at)
		SELECT 's', 'f', n::text, 1, n, '', '', true, '[]', n FROM generate_series(1, 5000) n`); err != nil {
		t.Fatal(err)
	}
	wholes := func() (n int) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		if err := s.pool.QueryRow(t.Context(), `SELECT sum(seq_scan) FROM pg_stat_user_tables
WHERE relname = 'entities' OR relname = 'update_status' OR relname = 'outbox' OR relname LIKE 'snapshot\_state\_%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	all, err := s.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, 2000)
	if err != nil {
		t.Fatal(err)
	}
	var others []schemas.Entity
	for _, r := range all[1000:] {
		others = append(others, r.Entity)
	}
	aliases, err := s.States(t.Context(), others)
	if err != nil {
		t.Fatal(err)
	}
	all = all[:1000]
	var keys []schemas.Entity
	var reads []prefetched.EntityReads
	var writes []store.Write
	for i, r := range all {
		keys = append(keys, r.Entity)
		reads = append(reads, prefetched.EntityReads{Entity: r.Entity, Count: 1, At: r.Due})
		writes = append(writes, store.Write{
			Entity: r.Entity, Version: 5, CheckedAt: time.UnixMicro(5),
			Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
			Outbox:  store.OutboxEvents{PublishChange: true},
			Aliases: aliases[i : i+1],
		})
	}
	version := byte(5)
	for name, do := range map[string]func() error{
		"register": func() error { _, err := s.RegisterEntities(t.Context(), all); return err },
		"reads":    func() error { return s.ObserveReads(t.Context(), reads, nil) },
		"enable": func() error {
			texts := make([]string, len(keys))
			for i, e := range keys {
				texts[i] = e.Key
			}
			_, err := s.EnableEntities(t.Context(), prefetched.Filter{Source: keys[0].Source, Facet: keys[0].Facet}, texts, true)
			return err
		},
		"write": func() error {
			version++
			for i := range writes {
				writes[i].Version, writes[i].Hash = int64(version), store.Hash{version}
			}
			_, err := s.Write(t.Context(), writes)
			return err
		},
		"write unchanged": func() error {
			_, err := s.Write(t.Context(), writes)
			return err
		},
		"effects": func() error {
			claimed, err := s.ClaimOutboxEvents(t.Context(), "s", time.UnixMicro(1<<50), time.Minute, 500)
			if err != nil {
				return err
			}
			var ids []int64
			for _, e := range claimed {
				ids = append(ids, e.ID)
			}
			return s.DeleteOutboxEvents(t.Context(), ids)
		},
		"next outbox time": func() error { _, err := s.NextOutboxTime(t.Context(), "s"); return err },
		"states":           func() error { _, err := s.States(t.Context(), keys); return err },
		"statuses":         func() error { _, err := s.Statuses(t.Context(), keys); return err },
		"next":             func() error { _, err := s.NextEntityTime(t.Context(), "s"); return err },
		"expired": func() error {
			_, _, err := s.DeleteExpired(t.Context(), "s", "f", time.UnixMicro(0), time.UnixMicro(0), 1000)
			return err
		},
		"claim": func() error {
			_, err := s.ClaimEntities(t.Context(), "s", time.UnixMicro(1<<50), 1000, time.Minute, nil, func(c prefetched.Candidate) prefetched.Decision {
				return prefetched.Decision{Due: c.Due, Enqueue: true}
			})
			return err
		},
	} {
		before := wholes()
		// From its sixth execution on, PostgreSQL may execute a prepared statement with a generic plan,
		// which must use the index too.
		for range 7 {
			if err := do(); err != nil {
				t.Fatal(name, err)
			}
		}
		if n := wholes() - before; n != 0 {
			t.Errorf("%s: got %d sequential scans, want none", name, n)
		}
	}
}
