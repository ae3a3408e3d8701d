package runs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

// In the original design (github-collection-v3.md, defect f), two unique indexes do not hold: one has a
// page key that is null for first pages, and the other, about active runs, allows a run in the state
// CREATED beside a RUNNING one.
func TestStart_OneActiveRunOfAScope(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		var wg sync.WaitGroup
		ids := make([]string, 8)
		news := make([]bool, 8)
		for i := range ids {
			wg.Go(func() {
				run, started, err := New(r).Start(r.Context(), r.order("octocat"), r.now)
				if err != nil {
					t.Error(err)
				}
				ids[i], news[i] = run.ID, started
			})
		}
		wg.Wait()
		started := len(slices.DeleteFunc(news, func(n bool) bool { return !n }))
		if slices.ContainsFunc(ids, func(id string) bool { return id != ids[0] }) || started != 1 {
			t.Errorf("got runs %q of which %d are new, want one", ids, started)
		}
		r.wantCounts(ids[0], Running, Counts{Open: 2})
	})
}

func TestOverlap_BufferOneWaits(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Steps, r.config.Overlap = map[string]StepConfig{"user": {}}, OverlapBuffer
		first := r.start("octocat")
		r.take()
		second, started, err := New(r).Start(r.Context(), r.order("octocat"), r.now)
		if err != nil || !started || !second.Waiting {
			t.Fatalf("second run: got started %t, waiting %t, %v; want a new run that waits", started, second.Waiting, err)
		}
		third, started, err := New(r).Start(r.Context(), r.order("octocat"), r.now)
		if err != nil || started || third.ID != second.ID {
			t.Fatalf("third run: got %s, started %t, %v; want the one that waits", third.ID, started, err)
		}
		r.work()
		r.wantRequests()
		r.pass(time.Second)
		r.fetched(first, "user", "octocat", store.Content)
		r.pass(time.Second)
		r.work()
		r.wantCounts(first.ID, Completed, Counts{Done: 1})
		r.wantRequests("user/octocat") // a fetch before the start of the run does not end its step
		r.fetched(second, "user", "octocat", store.Content)
		r.work()
		r.wantCounts(second.ID, Completed, Counts{Done: 1})
	})
}

func TestOverlap_CancelOther(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Overlap = OverlapCancel
		first := r.start("octocat")
		second := r.start("octocat")
		r.wantCounts(first.ID, Cancelled, Counts{Cancelled: 2})
		r.wantEnds(first, "CANCELLED 1")
		r.wantCounts(second.ID, Running, Counts{Open: 2})
	})
}

func TestIdempotencyKey_ReturnsTheFirstRun(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Overlap = OverlapCancel
		o := r.order("octocat")
		o.IdempotencyKey = "k"
		first, _, err := New(r).Start(r.Context(), o, r.now)
		if err != nil {
			t.Fatal(err)
		}
		if again, started, err := New(r).Start(r.Context(), o, r.now); err != nil || started || again.ID != first.ID {
			t.Errorf("the same request: got %s, started %t, %v; want the first run", again.ID, started, err)
		}
		other := o
		other.Keys.List = []string{"hubot"}
		if _, _, err := New(r).Start(r.Context(), other, r.now); !errors.Is(err, ErrKeyReused) {
			t.Errorf("another body: got %v, want %v", err, ErrKeyReused)
		}
		client := o
		client.TriggeredBy = "key:b"
		if _, started, err := New(r).Start(r.Context(), client, r.now); err != nil || !started {
			t.Errorf("another client: got started %t, %v; want a new run", started, err)
		}
		r.pass(IdempotencyTTL)
		if again, started, err := New(r).Start(r.Context(), o, r.now); err != nil || !started || again.ID == first.ID {
			t.Errorf("after a day: got %s, started %t, %v; want a new run", again.ID, started, err)
		}
	})
}

func TestStart_RejectsBadKeys(t *testing.T) {
	r := newRig(t, openSQLite(t))
	many := make([]string, MaxKeys+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, keys := range map[string]Keys{
		"none": {}, "both": {List: []string{"a"}, Prefix: "b"}, "empty": {List: []string{""}}, "control": {List: []string{"a\n"}}, "too many": {List: many},
		"prefix without entities": {Prefix: "a"},
	} {
		o := r.order()
		o.Keys = keys
		if _, _, err := New(r).Start(r.Context(), o, r.now); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want %v", name, err, ErrInvalid)
		}
	}
}

func TestSchedule_StartsOneRunPerInterval(t *testing.T) {
	eachDatabase(t, func(r *rig) {
		r.config.Steps, r.config.Every = map[string]StepConfig{"user": {}}, time.Hour
		ctx := t.Context()
		err := r.db.InTx(ctx, func(tx store.Tx) error {
			for _, key := range []string{"a", "b"} {
				if _, err := one(ctx, tx, `INSERT INTO entities (source, facet, key, params, tier, enabled, due_at, claimed_at, updated_at, changes, watched, reads, read_at)
VALUES ('github', 'user', $1, '{}', 0, true, 0, 0, 0, 0, 0, 0, 0)`, key); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.work()
		r.wantRequests()
		r.pass(time.Hour)
		var wg sync.WaitGroup
		for range 4 { // a poller in each of four processes
			wg.Go(func() {
				if _, err := r.process().Work(ctx, r.now); err != nil && !errors.Is(err, store.ErrContention) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r.wantRequests("user/a", "user/b")
		all, err := New(r).List(ctx, Filter{Source: "github", Limit: 10})
		if err != nil || len(all) != 1 || all[0].TriggeredBy != ScheduledBy || all[0].Scope != "*" {
			t.Errorf("runs: got %+v, %v; want one scheduled run", all, err)
		}
		for _, key := range []string{"a", "b"} {
			r.fetched(all[0], "user", key, store.Content)
		}
		r.work()
		r.pass(3 * time.Hour) // three hours have passed, and only one run is started for them
		r.work()
		r.work()
		r.wantRequests("user/a", "user/b")
	})
}
