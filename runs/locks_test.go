package runs

import (
	"slices"
	"testing"
	"time"

	"github.com/freshet/freshet/servicetest"
	"github.com/freshet/freshet/store"
)

// count returns the number in the only row of a query.
func (r *rig) count(query string) (n int) {
	r.Helper()
	err := r.db.InTx(r.Context(), func(tx store.Tx) error {
		return tx.Query(r.Context(), func(scan func(...any) error) error { return scan(&n) }, query)
	})
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// A transaction that stores pages locks the steps of their entities in the order of facets and keys. If due times were set in
// another order, each transaction could wait for the other one.
func TestSetDue_LocksStepsInTheOrderOfPages(t *testing.T) {
	db, _ := openPostgres(t)
	r := newRig(t, db)
	r.config.Steps = map[string]StepConfig{"user": {}}
	run := r.start("a", "z")
	steps, err := New(db).claim(t.Context(), "github", r.now.Add(lease), lease, 10)
	if err != nil || len(steps) != 2 {
		t.Fatalf("claimed steps: got %d, %v, want 2", len(steps), err)
	}
	var waits []due
	for _, c := range slices.Backward(steps) {
		waits = append(waits, c.dueAgain("github", r.now.Add(time.Hour)))
	}
	pages, err := connect(t, db).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	storePage := func(key string) {
		t.Helper()
		s := StorePage(Ref{run.ID, r.entity("user", key)}, r.now)
		if _, err := pages.Exec(t.Context(), s.Text, s.Args...); err != nil {
			t.Fatalf("page of %s: got %v, want no error", key, err)
		}
	}
	storePage("a")
	result := make(chan error)
	go func() { result <- New(db).setDue(t.Context(), waits) }()
	servicetest.WaitFor(t, time.Minute, "setDue waits for the lock of a", func() bool {
		return r.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0
	})
	storePage("z")
	if err := pages.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Errorf("setDue: got %v, want no error", err)
	}
}
