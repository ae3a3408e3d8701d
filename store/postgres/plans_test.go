package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// TestNoBatchReadsAWholeTable runs what runs regularly and asks PostgreSQL whether it has
// read a table whole: a touch of 500 among 200,000 snapshots once did, and took 15 times
// as long.
func TestNoBatchReadsAWholeTable(t *testing.T) {
	s := alone(t)
	const n = 20_000
	for _, sql := range []string{
		`INSERT INTO snapshot_state SELECT 's', 'f', 'key-' || n, 1, sha256(n::text::bytea), 0, 'zstd', 17000, 1, 1, 1, false, '', '' FROM generate_series(1, $1) n`,
		`INSERT INTO update_status SELECT 's', 'f', 'key-' || 20 * n, 'RETRYING', '', '', 1, 0, 1, n, 'LOW', '{}', '', '', 1, 1 FROM generate_series(1, $1 / 20) n`,
	} {
		if _, err := s.pool.Exec(t.Context(), sql, n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(t.Context(), "VACUUM ANALYSE"); err != nil {
		t.Fatal(err)
	}
	wholes := func() (n int) {
		t.Helper()
		if _, err := s.pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		if err := s.pool.QueryRow(t.Context(), `SELECT sum(seq_scan) FROM pg_stat_user_tables
			WHERE relname = 'update_status' OR relname LIKE 'snapshot\_state\_%'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	var of []schemas.Entity
	var writes []store.Write
	for i := range 1000 {
		e := schemas.Entity{Source: "s", Facet: "f", Key: fmt.Sprint("key-", 1+i*n/1000)}
		of = append(of, e)
		writes = append(writes, store.Write{
			Entity: e, Version: 5, CheckedAt: time.UnixMicro(5),
			Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
		})
	}
	for name, do := range map[string]func() error{
		"write":    func() error { _, err := s.Write(t.Context(), writes); return err },
		"states":   func() error { _, err := s.States(t.Context(), of); return err },
		"statuses": func() error { _, err := s.Statuses(t.Context(), of); return err },
	} {
		before := wholes()
		if err := do(); err != nil {
			t.Fatal(name, err)
		}
		if after := wholes(); after != before {
			t.Errorf("%s has read tables whole, %d times", name, after-before)
		}
	}
}
