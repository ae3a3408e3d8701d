package postgres

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
)

// TestDeleteExpired_KeepsConcurrentWrites commits a fetch of an expired entity after DeleteExpired
// has selected the entity and before it deletes the entity. The new snapshot must be kept.
func TestDeleteExpired_KeepsConcurrentWrites(t *testing.T) {
	s := open(t)
	writes := benchWrites(3, 5, 1)
	if _, err := s.Write(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	e := writes[1].Entity
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `UPDATE snapshot_state SET last_fetched_at = 100, last_checked_at = 100 WHERE key = $1`, e.Key); err != nil {
		t.Fatal(err)
	}
	type result struct {
		deleted int
		done    bool
		err     error
	}
	results := make(chan result)
	go func() {
		var r result
		r.deleted, r.done, r.err = s.DeleteExpired(t.Context(), e.Source, e.Facet, time.UnixMicro(50), time.UnixMicro(50), 10)
		results <- r
	}()
	waitForLock(t, s)
	// While another call for the same facet is running, DeleteExpired does nothing and does not wait.
	if n, done, err := s.DeleteExpired(t.Context(), e.Source, e.Facet, time.UnixMicro(50), time.UnixMicro(50), 10); n != 0 || done || err != nil {
		t.Errorf("concurrent DeleteExpired: got %v, %v, %v", n, done, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-results; r.deleted != 2 || !r.done || r.err != nil {
		t.Errorf("walk: got %+v", r)
	}
	all, err := s.GetAll(t.Context(), []schemas.Entity{writes[0].Entity, e, writes[2].Entity})
	if err != nil || all[0].Version != 0 || all[1].Version != 5 || len(all[1].Payload) == 0 || all[2].Version != 0 {
		t.Errorf("%d, %d with %d bytes, %d, %v", all[0].Version, all[1].Version, len(all[1].Payload), all[2].Version, err)
	}
}
