package credits

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/freshet/freshet/access"
	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Test case 1 of the source document: three refreshes of one user have been in progress for 31
// minutes. The credits reaper gives back the credit of each refresh.
func TestReap_GivesBackEachHoldOfOneUser(t *testing.T) {
	r := newRig(t)
	s := r.process()
	for i, key := range []string{"a", "b", "c"} {
		r.refresh(s, user("1"), key, int64(100+i))
	}
	r.want(user("1"), 7, 3)
	r.pass(31 * time.Minute)
	got, err := s.Reap(t.Context())
	if err != nil || got.Holds != 3 || !slices.Equal(got.Clients, []string{"key:1"}) || len(got.Skipped) != 0 {
		t.Errorf("got %+v, %v, want 3 holds of key:1", got, err)
	}
	r.want(user("1"), 10, 0)
}

// Test case 2 of the source document: the credits reaper does not end a refresh that has been in
// progress for 15 minutes.
func TestReap_LeavesRecentHolds(t *testing.T) {
	r := newRig(t)
	s := r.process()
	r.refresh(s, user("1"), "a", 100)
	r.pass(15 * time.Minute)
	if got, err := s.Reap(t.Context()); err != nil || got.Holds != 0 || len(got.Clients) != 0 {
		t.Errorf("got %+v, %v, want no hold", got, err)
	}
	r.want(user("1"), 9, 1)
}

// Test case 3 of the source document: two credits reapers run, and an operator starts a third one.
// Each credit is given back once.
func TestReap_GivesBackOnceConcurrently(t *testing.T) {
	r := newRig(t)
	s := r.process()
	for i := range 300 {
		c := user(fmt.Sprint(i % 30))
		r.refresh(s, c, fmt.Sprint(i), int64(100+i))
	}
	r.pass(31 * time.Minute)
	var wg sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for range 3 {
		wg.Go(func() {
			got, err := r.process().Reap(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum += got.Holds
		})
	}
	wg.Wait()
	if sum != 300 {
		t.Errorf("holds given back: got %d, want 300", sum)
	}
	for i := range 30 {
		r.want(user(fmt.Sprint(i)), 10, 0)
	}
}

func TestReap_SkipsAClientWithALockedAccount(t *testing.T) {
	r := newRig(t)
	s := r.process()
	for i := range 4 {
		r.refresh(s, user(fmt.Sprint(i)), "a", 100)
	}
	r.pass(31 * time.Minute)
	r.locked = "key:1"
	got, err := s.Reap(t.Context())
	if err != nil || got.Holds != 3 || !slices.Equal(got.Skipped, []string{"key:1"}) {
		t.Errorf("with a locked account: got %+v, %v, want 3 holds and key:1 skipped", got, err)
	}
	r.want(user("1"), 9, 1)
	r.locked = ""
	if got, err := s.Reap(t.Context()); err != nil || got.Holds != 1 || len(got.Skipped) != 0 {
		t.Errorf("afterwards: got %+v, %v, want 1 hold", got, err)
	}
	r.want(user("1"), 10, 0)
}

func TestOutcome_IsReadFromTheDatabase(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	h := Hold{Number: 100, ExpiresAt: now.Add(time.Minute)}
	unnumbered, expired := h, h
	unnumbered.Number = 0
	expired.ExpiresAt = now
	status := func(state store.StatusState, version int64) store.Status {
		return store.Status{State: state, Version: version}
	}
	for name, test := range map[string]struct {
		hold    Hold
		version int64
		status  store.Status
		want    State
	}{
		"nothing stored":                   {h, 0, store.Status{}, Held},
		"earlier version":                  {h, 99, store.Status{}, Held},
		"version of the request":           {h, 100, store.Status{}, Captured},
		"later version":                    {h, 101, store.Status{}, Captured},
		"version after the expiry":         {expired, 101, store.Status{}, Captured},
		"version beside a later failure":   {h, 101, status(store.Failed, 102), Captured},
		"retry":                            {h, 99, status(store.Retrying, 100), Held},
		"final failure":                    {h, 99, status(store.Failed, 100), Released},
		"suspended":                        {h, 99, status(store.Suspended, 101), Released},
		"earlier failure":                  {h, 99, status(store.Failed, 99), Held},
		"expired":                          {expired, 99, status(store.Retrying, 100), Expired},
		"without number":                   {unnumbered, 101, store.Status{}, Held},
		"without number, failed":           {unnumbered, 0, status(store.Failed, 101), Held},
		"without number, after its expiry": {Hold{ExpiresAt: now}, 101, store.Status{}, Expired},
	} {
		if got := outcomeOf(test.hold, store.State{Version: test.version}, test.status, now); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestSettled_EndsTheHoldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.process()
		go func() { _ = s.Run(t.Context()) }()
		r.refresh(s, user("1"), "brought", 100)
		r.refresh(s, user("1"), "failed", 101)
		r.refresh(s, user("1"), "retried", 102)
		r.store("brought", 110)
		r.fail("failed", 111, store.Failed)
		r.fail("retried", 112, store.Retrying)
		for _, key := range []string{"brought", "failed", "retried", "other"} {
			s.Settled(schemas.Settled{Entity: entity(key), Number: 120})
		}
		synctest.Wait()
		r.want(user("1"), 8, 1)
		r.store("retried", 130)
		s.Settled(schemas.Settled{Entity: entity("retried"), Number: 130})
		synctest.Wait()
		r.want(user("1"), 8, 0)
		if s.tracker.count != 0 || len(s.tracker.open) != 0 {
			t.Errorf("tracked holds: got %d, want 0", s.tracker.count)
		}
	})
}

// The settle message may arrive before the number of the request is known.
func TestSettled_BeforeTheNumberIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.process()
		go func() { _ = s.Run(t.Context()) }()
		all := s.Reserve(t.Context(), user("1"), []schemas.Entity{entity("a")}, "")
		r.store("a", 100)
		s.Settled(schemas.Settled{Entity: entity("a"), Number: 100})
		synctest.Wait()
		r.want(user("1"), 9, 1)
		s.Confirm(t.Context(), []Enqueued{{Reservation: all[0], Outcome: Queued, Number: 100}})
		synctest.Wait()
		r.want(user("1"), 9, 0)
	})
}

// A process that starts, or that was disconnected, checks the holds of all processes.
func TestConnected_ChecksAllOpenHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		before := r.process()
		r.refresh(before, user("1"), "a", 100)
		r.refresh(before, user("1"), "b", 101)
		r.store("a", 100)
		s := r.process()
		go func() { _ = s.Run(t.Context()) }()
		s.Connected(true)
		synctest.Wait()
		r.want(user("1"), 8, 1)
		r.store("b", 101)
		s.Settled(schemas.Settled{Entity: entity("b"), Number: 101})
		synctest.Wait()
		r.want(user("1"), 8, 0)
	})
}

func TestRun_ReapsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.process()
		r.refresh(s, user("1"), "a", 100)
		r.pass(31 * time.Minute)
		go func() { _ = s.Run(t.Context()) }()
		time.Sleep(reapInterval - time.Second)
		r.want(user("1"), 9, 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.want(user("1"), 10, 0)
	})
}

// TestFaults_NeverChargeTwiceOrLoseCredits loses the connection before or after random commits, ends
// processes, repeats requests, and lets 20 % of the fetches fail. Afterwards no credit is lost, and the
// captured credits belong to refreshes that brought a version.
func TestFaults_NeverChargeTwiceOrLoseCredits(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testFaults(t, seed)
		})
	}
}

func testFaults(t *testing.T, seed uint64) {
	r, random := newRig(t), random(t, seed)
	r.faults = func() fault { return []fault{none, none, none, lostBefore, lostAfter}[random.IntN(5)] }
	s := r.process()
	clients := []access.Client{user("0"), user("1"), {Name: "key:2", Scopes: []access.Scope{access.Refresh, "plan:partner"}}}
	brought := map[string]int64{} // queued refreshes that brought a version, by client
	number := int64(1000)
	for range 30 {
		c := clients[random.IntN(len(clients))]
		number += 10
		key := fmt.Sprint("k", number)
		attempts := 1 + random.IntN(3)
		queued := false
		for range attempts { // the client repeats one request
			all := s.Reserve(t.Context(), c, []schemas.Entity{entity(key)}, key)
			switch outcome := Outcome(random.IntN(4)); {
			case all[0].Err != nil || all[0].Number > 0:
			case outcome == 3: // the process ends before the enqueue
				s = r.process()
			default:
				s.Confirm(t.Context(), []Enqueued{{Reservation: all[0], Outcome: outcome, Number: number}})
				queued = queued || outcome != NotQueued
			}
		}
		switch {
		case !queued:
		case random.IntN(5) == 0:
			r.fail(key, number+1, store.Failed)
		default:
			r.store(key, number+1)
			brought[c.Name]++
		}
		if random.IntN(3) == 0 {
			r.pass(10 * time.Minute)
		}
		switch random.IntN(4) {
		case 0:
			s.Settled(schemas.Settled{Entity: entity(key), Number: number + 1})
			_ = s.checkDue(t.Context())
		case 1:
			_, _ = s.Reap(t.Context())
		case 2:
			_, _ = r.process().Reap(t.Context())
		}
	}
	r.faults = nil
	r.pass(time.Hour)
	if _, err := r.process().Reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		d, err := NewLedger(r.config, r.db, r.now).Details(t.Context(), c.Name)
		if err != nil || d.Held != 0 {
			t.Errorf("%s: got %d held, %v, want 0", c.Name, d.Held, err)
		}
		if used := r.used(c); used > brought[c.Name] {
			t.Errorf("%s: got %d captured credits, want at most %d: one for each refresh that brought a version", c.Name, used, brought[c.Name])
		}
		_, plan := r.config.plan(c.Plan())
		if d.Balance != plan.Amount-r.used(c) {
			t.Errorf("%s: got balance %d, want the %d granted credits without the %d captured ones", c.Name, d.Balance, plan.Amount, r.used(c))
		}
	}
	r.verify()
	if len(slices.Collect(maps.Keys(brought))) == 0 {
		t.Error("no refresh brought a version")
	}
}
