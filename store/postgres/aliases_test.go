package postgres

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/shared"
)

// waitForLock waits until a transaction of the test's database waits for a lock.
func waitForLock(t *testing.T, s *Store) {
	t.Helper()
	servicetest.WaitFor(t, time.Minute, "a transaction waits for a lock", func() bool {
		n := 0
		err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&n)
		return err == nil && n > 0
	})
}

// TestWrite_DeadlockOfAliasesIsContention makes two transactions wait for each other: one changes the
// alias id/2 and marks f/1, the other has touched f/1 and checks id/2. PostgreSQL must end exactly one of
// them with ErrContention, so that its caller repeats it.
func TestWrite_DeadlockOfAliasesIsContention(t *testing.T) {
	s := open(t)
	write := func(facet, key string, version int64, text string) store.Write {
		return store.Write{
			Entity: schemas.Entity{Source: "s", Facet: facet, Key: key}, Version: version, CheckedAt: time.UnixMicro(version),
			Hash: store.Hash{text[0]}, Payload: func() (store.Payload, error) { return store.Encode([]byte(`"` + text + `"`)), nil },
		}
	}
	old := []store.Write{write("id", "1", 1, "A"), write("id", "2", 1, "A"), write("f", "1", 1, "a"), write("f", "2", 1, "a")}
	if _, err := s.Write(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	aliases, err := s.States(t.Context(), []schemas.Entity{old[0].Entity, old[1].Entity})
	if err != nil {
		t.Fatal(err)
	}
	touched, changed := write("f", "1", 2, "a"), write("f", "2", 2, "b")
	touched.Aliases, changed.Aliases = aliases[:1], aliases[1:]

	renames, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = renames.Rollback(t.Context()) }()
	db := s.prepared(renames)
	if err := upsertChanged(t.Context(), db, shared.NewBatch([]store.Write{write("id", "2", 2, "B")})); err != nil {
		t.Fatal(err)
	}
	var results []store.Result
	written := make(chan error)
	go func() {
		var err error
		results, err = s.Write(t.Context(), []store.Write{touched, changed})
		written <- err
	}()
	waitForLock(t, s) // Write has touched f/1 and waits for id/2
	marked := classifyError(db.exec(t.Context(), markUsers, []string{"s", "s"}, []string{"f", "f"}, []string{"1", "2"}))
	if marked == nil {
		marked = renames.Commit(t.Context())
	} else if err := renames.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := <-written
	if a, b := errors.Is(marked, store.ErrContention), errors.Is(ended, store.ErrContention); a == b || (!a && marked != nil) || (!b && ended != nil) {
		t.Fatalf("the transactions: got %v and %v, want ErrContention for exactly one", marked, ended)
	}
	want := []store.Result{store.Touched, store.Changed}
	if marked == nil { // id/2 has changed, so the fetch of f/2 is stale; f/1 is touched after a check of id/1
		want[1] = store.BaseMissing
		if results, err = s.Write(t.Context(), []store.Write{touched, changed}); err != nil {
			t.Fatalf("repeated Write: got %v, want no error", err)
		}
	}
	if !slices.Equal(results, want) {
		t.Errorf("results: got %v, want %v", results, want)
	}
}
