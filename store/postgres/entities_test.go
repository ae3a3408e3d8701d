package postgres

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

func TestCountEntities_EstimatesLargeCounts(t *testing.T) {
	s := open(t)
	fillEntities(t, s, 20_000)
	for filter, want := range map[prefetched.Filter]int64{{}: 20_000, {Source: "s", Facet: "f"}: 20_000, {Source: "other"}: 0} {
		exactly, exact, err := s.CountEntities(t.Context(), filter)
		if exactly != want || !exact || err != nil {
			t.Errorf("exact count of %+v: got %d (exact: %v), %v, want %d", filter, exactly, exact, err, want)
		}
		about, exact, err := s.count(t.Context(), filter, 0)
		if about < want*9/10 || about > want*11/10+1 || exact || err != nil {
			t.Errorf("estimate of %+v: got %d (exact: %v), %v, want about %d", filter, about, exact, err, want)
		}
	}
}

// TestClaimEntities_SurvivesALostSession ends the database session in the middle of a claim. The
// claim must fail without changing an entity, and the entities can then be claimed again.
func TestClaimEntities_SurvivesALostSession(t *testing.T) {
	s := open(t)
	fillEntities(t, s, 100)
	before, err := s.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, 200)
	if err != nil {
		t.Fatal(err)
	}
	move := func(prefetched.Candidate) prefetched.Decision {
		return prefetched.Decision{Due: time.UnixMicro(1 << 50), Enqueue: true}
	}
	calls := 0
	_, err = s.ClaimEntities(t.Context(), "s", time.UnixMicro(1<<40), 10, time.Minute, nil, func(c prefetched.Candidate) prefetched.Decision {
		if calls++; calls == 5 {
			if _, err := s.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction'`); err != nil {
				t.Error(err)
			}
		}
		return move(c)
	})
	if err == nil || calls != 10 {
		t.Fatalf("ClaimEntities succeeded after %d decisions, want an error", calls)
	}
	after, err := s.Entities(t.Context(), prefetched.Filter{}, schemas.Entity{}, 200)
	if err != nil || len(after) != len(before) {
		t.Fatal(len(after), err)
	}
	for i := range after {
		if !after[i].Due.Equal(before[i].Due) {
			t.Errorf("due time of %s changed from %v to %v", after[i].Entity, before[i].Due, after[i].Due)
		}
	}
	if _, found, err := s.TakeOverClaim(t.Context(), "s", time.UnixMicro(1<<60), time.Minute); found || err != nil {
		t.Errorf("TakeOverClaim: got %v, %v", found, err)
	}
	asked := 0
	for range 1000 { // repeat: claims skip the locked entities until PostgreSQL has ended the session
		c, err := s.ClaimEntities(t.Context(), "s", time.UnixMicro(1<<40), 200, time.Minute, nil, move)
		if err != nil {
			t.Fatal(err)
		}
		if asked += len(c.Requests); asked >= 98 {
			break
		}
	}
	if asked != 98 { // the other 2 of the 100 entities are disabled
		t.Errorf("requests of the claim: got %d, want 98", asked)
	}
}
