package sqlite

import (
	"database/sql/driver"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
	"github.com/freshet/freshet/store/shared"
	"github.com/freshet/freshet/store/storetest"
)

func TestSQLite_PassesTheSuite(t *testing.T) {
	for name, path := range map[string]func(*testing.T) string{
		"in memory": func(*testing.T) string { return "" },
		"in a file": func(t *testing.T) string { return filepath.Join(t.TempDir(), "a #1?.db") },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) storetest.Store {
				s, err := Open(t.Context(), path(t))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				})
				return s
			})
		})
	}
}

func TestOpen_FileKeepsSnapshotsMemoryDoesNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.db")
	for _, path := range []string{file, ""} {
		for round := range 2 {
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			var n int
			if err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM snapshot_state").Scan(&n); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: round, false: 0}[path != ""]; n != want {
				t.Errorf("round %d at %q: %d snapshots, want %d", round, path, n, want)
			}
			if _, err := s.db.ExecContext(t.Context(),
				"INSERT INTO snapshot_state VALUES ('s', 'f', $1, 1, x'', 0, '', 0, 0, 0, 0, false, '', '', '', false, false, '', false, NULL)", round); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestOpen_MemoryHasTheSchemaOfAFile(t *testing.T) {
	schemaOf := func(path string) (all []string) {
		s, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		rows, err := s.db.QueryContext(t.Context(), "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name NOT LIKE 'goose%' AND tbl_name NOT LIKE 'sqlite%' ORDER BY name")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var text string
			if err := rows.Scan(&text); err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return all
	}
	file, memory := schemaOf(filepath.Join(t.TempDir(), "f.db")), schemaOf("")
	if len(file) == 0 || !slices.Equal(memory, file) {
		t.Errorf("schema in memory: got %q, want that of a file, %q", memory, file)
	}
}

func TestPlans_DueRowsUseTheirIndex(t *testing.T) {
	s, err := Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for sql, args := range map[string][]any{
		prefetched.SelectDueEntities:   {"s", 1, 100},
		prefetched.SelectNextDueEntity: {"s"},
		takeOverClaim:                  {"s", 1, "id", 2},
		selectDueOutboxEvents:          {"s", 1, 100},
		shared.SelectNextOutboxTime:    {"s"},
	} {
		var id, parent, unused int
		var step string
		if err := s.db.QueryRowContext(t.Context(), "EXPLAIN QUERY PLAN "+sql, args...).Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(step, "SEARCH") {
			t.Errorf("%s\n%s", sql, step)
		}
	}
}

func TestDeleteSnapshot_RollsBackWithoutAudit(t *testing.T) {
	s, err := Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	w := store.Write{
		Entity: schemas.Entity{Source: "s", Facet: "f", Key: "a"}, Version: 1, CheckedAt: time.UnixMicro(1),
		Payload: func() (store.Payload, error) { return store.Encode([]byte("{}")), nil },
	}
	if _, err := s.Write(t.Context(), []store.Write{w}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), "DROP TABLE audit"); err != nil {
		t.Fatal(err)
	}
	if existed, err := s.DeleteSnapshot(t.Context(), w.Entity, store.AuditEntry{}); existed || err == nil {
		t.Error(existed, err)
	}
	if got, err := s.Get(t.Context(), w.Entity); err != nil || len(got.Payload) == 0 {
		t.Errorf("snapshot: got %+v, %v", got.State, err)
	}
}

// Two processes may open one file, for example `freshet dev` and a tool that inspects its data.
// Their concurrent writes must not fail.
func TestFile_SerializesTwoWriters(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f.db")
	var wg sync.WaitGroup
	for range 2 {
		s, err := Open(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		wg.Go(func() {
			for i := range 200 {
				e := schemas.Entity{Source: "s", Facet: "f", Key: strconv.Itoa(i)}
				if _, err := s.RegisterEntities(t.Context(), []prefetched.RegisteredEntity{{Entity: e, Tier: prefetched.Warm, Enabled: true, Due: time.Now()}}); err != nil {
					t.Errorf("register %s: %v", e, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// database/sql closes its connection if the context of a call is cancelled at the moment when the
// call ends. The database in memory must survive this.
func TestMemoryDatabase_OutlivesItsConnection(t *testing.T) {
	s, err := Open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(err, driver.ErrBadConn) {
		t.Fatal(err)
	}
	_ = conn.Close()
	if _, err := s.States(t.Context(), []schemas.Entity{{Source: "s", Facet: "f", Key: "k"}}); err != nil {
		t.Errorf("the database in memory was lost: %v", err)
	}
}

// failingDriver is a driver that returns an error instead of a connection.
type failingDriver struct{ driver.Driver }

func (failingDriver) Open(string) (driver.Conn, error) { return nil, errors.New("refused") }

func TestOpenDriver_UsesTheWrappedDriver(t *testing.T) {
	_, err := OpenDriver(t.Context(), filepath.Join(t.TempDir(), "a.db"), func(d driver.Driver) driver.Driver { return failingDriver{d} })
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want the error of the wrapped driver", err)
	}
}
