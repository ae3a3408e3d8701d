package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// claim calls ClaimEntities with the given time, limit and function, and a lease of 60 s.
func (b suite) claim(now int64, limit int, decide func(prefetched.Candidate) prefetched.Decision) prefetched.Claim {
	b.Helper()
	c, err := b.store.ClaimEntities(b.Context(), entity.Source, at(now), limit, time.Minute, nil, decide)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// dueLater is a decide function that enqueues every candidate and sets a due time far in the
// future.
func dueLater(c prefetched.Candidate) prefetched.Decision {
	return prefetched.Decision{Due: at(1_000_000), Tier: c.Tier, History: c.History, Enqueue: true}
}

func requestOf(r prefetched.RegisteredEntity, version int64) prefetched.ClaimedRequest {
	return prefetched.ClaimedRequest{Entity: r.Entity, Params: r.Params, Version: version}
}

// wantClaim claims due entities, and fails the test unless it gets these entities in this order.
func (b suite) wantClaim(now int64, limit int, want ...prefetched.RegisteredEntity) {
	b.Helper()
	var requests []prefetched.ClaimedRequest
	for _, r := range want {
		requests = append(requests, requestOf(r, 0))
	}
	if c := b.claim(now, limit, dueLater); !reflect.DeepEqual(c.Requests, requests) || (c.ID == "") != (len(want) == 0) {
		b.Fatalf("claim: got\n%+v, want\n%+v", c, requests)
	}
}

func (b suite) wantNextEntityTime(want time.Time) {
	b.Helper()
	if got, err := b.store.NextEntityTime(b.Context(), entity.Source); err != nil || !got.Equal(want) {
		b.Fatalf("NextEntityTime: got %v, %v, want %v", got, err, want)
	}
}

func testClaim(b suite) {
	b.wantNextEntityTime(time.Time{})
	b.wantClaim(100, 10)
	x, y, z := registered(key("z"), 10), registered(key("y"), 20), registered(key("x"), 30)
	off := registered(key("off"), 1)
	off.Enabled = false
	b.register(5, z, off, x, y, registered(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 5))
	b.wantNextEntityTime(at(10))
	b.wantClaim(9, 10)
	b.wantClaim(30, 2, x, y)
	b.wantNextEntityTime(at(30))
	b.wantClaim(30, 2, z)
	b.wantNextEntityTime(at(1_000_000))
	b.wantClaim(999_999, 10)
}

// testDecide checks that ClaimEntities calls the function decide with each due entity, its state and
// its status, and that it stores the decisions.
func testDecide(b suite) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	b.register(3, x, y, z)
	b.write([]store.Result{store.Changed, store.NotFoundStored}, content(x.Entity, 5, "x"), notFound(z.Entity, 6))
	failed := failing(x.Entity, 9)
	b.fail(failed, failing(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "y"}, 9))
	var seen []prefetched.Candidate
	moved := map[schemas.Entity]prefetched.Decision{
		x.Entity: {Due: at(200), Tier: prefetched.Hot, Enqueue: true, History: prefetched.History{ClaimedAt: at(10), UpdatedAt: at(5), Changes: 0.1, Watched: time.Second, Reads: 1e-9, ReadAt: at(99)}},
		y.Entity: {Due: at(300), Tier: prefetched.Cold},
		z.Entity: {Due: at(100), Tier: prefetched.Warm, History: z.History, Enqueue: true},
	}
	c := b.claim(50, 10, func(c prefetched.Candidate) prefetched.Decision {
		seen = append(seen, c)
		return moved[c.Entity]
	})
	states, err := b.store.States(b.Context(), []schemas.Entity{x.Entity, y.Entity, z.Entity})
	if err != nil {
		b.Fatal(err)
	}
	want := []prefetched.Candidate{
		{RegisteredEntity: x, State: states[0], Status: failed},
		{RegisteredEntity: y, State: store.State{Entity: y.Entity}, Status: store.Status{Entity: y.Entity}},
		{RegisteredEntity: z, State: states[2], Status: store.Status{Entity: z.Entity}},
	}
	if !reflect.DeepEqual(seen, want) {
		b.Fatalf("candidates: got\n%+v, want\n%+v", seen, want)
	}
	if requests := []prefetched.ClaimedRequest{requestOf(x, 5), requestOf(z, 6)}; c.ID == "" || c.Source != entity.Source || !c.At.Equal(at(50)) || !reflect.DeepEqual(c.Requests, requests) {
		b.Fatalf("%+v, want %+v", c, requests)
	}
	for _, r := range []*prefetched.RegisteredEntity{&x, &y, &z} {
		m := moved[r.Entity]
		r.Due, r.Tier, r.History = m.Due, m.Tier, m.History
	}
	b.wantEntities(prefetched.Filter{}, x, y, z)
	b.wantNextEntityTime(at(100))
}

// testClaimWithoutRequests: if decide enqueues nothing, no claim is stored, but the new due times
// are stored.
func testClaimWithoutRequests(b suite) {
	b.register(1, registered(entity, 10))
	if c := b.claim(50, 10, func(prefetched.Candidate) prefetched.Decision { return prefetched.Decision{Due: at(60)} }); c.ID != "" || len(c.Requests) != 0 {
		b.Errorf("claim: got %+v", c)
	}
	if _, found, err := b.store.TakeOverClaim(b.Context(), entity.Source, at(1_000_000), time.Hour); found || err != nil {
		b.Errorf("TakeOverClaim: got %v, %v", found, err)
	}
	b.wantNextEntityTime(at(60))
}

// testClaimRolledBack: a scheduler that crashes before the commit has claimed nothing.
func testClaimRolledBack(b suite) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	b.register(2, x, y)
	dead := errors.New("dead")
	func() {
		defer func() {
			if p := recover(); p != dead { //nolint:errorlint // the recovered value must be dead itself
				b.Error(p)
			}
		}()
		n := 0
		_, _ = b.store.ClaimEntities(b.Context(), entity.Source, at(50), 10, time.Minute, nil, func(prefetched.Candidate) prefetched.Decision {
			if n++; n == 2 {
				panic(dead)
			}
			return prefetched.Decision{Due: at(99), Enqueue: true}
		})
	}()
	b.wantEntities(prefetched.Filter{}, x, y)
	if _, found, err := b.store.TakeOverClaim(b.Context(), entity.Source, at(1_000_000), time.Hour); found || err != nil {
		b.Errorf("TakeOverClaim: got %v, %v", found, err)
	}
	b.wantClaim(50, 10, x, y)
}

func testTakeOverClaim(b suite) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	b.register(2, x, y)
	takeOver := func(now int64) (prefetched.Claim, bool) {
		b.Helper()
		c, found, err := b.store.TakeOverClaim(b.Context(), entity.Source, at(now), 100*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		return c, found
	}
	renewed := func(id string, until int64) bool {
		b.Helper()
		held, err := b.store.RenewClaim(b.Context(), id, at(until))
		if err != nil {
			b.Fatal(err)
		}
		return held
	}
	first := b.claim(10, 1, dueLater)  // the lease of this claim ends at the time at(70)
	second := b.claim(20, 1, dueLater) // the lease of this claim ends at the time at(80)
	if _, found := takeOver(69); found {
		b.Fatal("a claim that is held was taken over")
	}
	if !renewed(first.ID, 200) {
		b.Fatal("a claim that is held could not be renewed")
	}
	taken, found := takeOver(90) // takeOver takes over the claim at a given time. The new lease ends at the time at(190).
	if !found || taken.ID == second.ID || !taken.At.Equal(at(20)) || taken.Source != entity.Source || !reflect.DeepEqual(taken.Requests, second.Requests) {
		b.Fatalf("TakeOverClaim: got %+v, want %+v", taken, second)
	}
	if _, found := takeOver(91); found || renewed(second.ID, 500) {
		b.Fatal("a claim has two holders")
	}
	if err := b.store.FinishClaim(b.Context(), second.ID); err != nil { // must not delete the claim: the takeover changed its ID
		b.Fatal(err)
	}
	again, found := takeOver(190)
	if !found || !reflect.DeepEqual(again.Requests, second.Requests) || !renewed(again.ID, 300) {
		b.Fatalf("second takeover: got %+v", again)
	}
	for range 2 {
		if err := b.store.FinishClaim(b.Context(), again.ID); err != nil {
			b.Fatal(err)
		}
	}
	if c, found := takeOver(250); !found || !reflect.DeepEqual(c.Requests, first.Requests) {
		b.Fatalf("claim: got %+v", c)
	}
	if _, found := takeOver(251); found || renewed(again.ID, 300) {
		b.Error("TakeOverClaim returned a finished claim")
	}
	if _, found, err := b.store.TakeOverClaim(b.Context(), "nexo", at(1000), time.Hour); found || err != nil {
		b.Errorf("TakeOverClaim: got %v, %v", found, err)
	}
}

// testTakeOverRace takes over expired claims concurrently. Each claim must go to only one caller.
func testTakeOverRace(b suite) {
	const claims = 12
	for n := range int64(claims) {
		b.register(1, registered(key(fmt.Sprint(n)), n))
		b.claim(n, 1, dueLater)
	}
	var mu sync.Mutex
	taken := map[schemas.Entity]int{}
	var wg sync.WaitGroup
	take := func() bool {
		c, found, err := b.store.TakeOverClaim(b.Context(), entity.Source, at(1000), time.Hour)
		if err != nil {
			b.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, a := range c.Requests {
			taken[a.Entity]++
		}
		return found
	}
	for range 6 {
		wg.Go(func() {
			for take() {
			}
		})
	}
	wg.Wait()
	for take() { // take over the claims that the calls above skipped, because another call had locked them
	}
	for e, n := range taken {
		if n != 1 {
			b.Errorf("%s: taken over %d times, want once", e, n)
		}
	}
	if len(taken) != claims {
		b.Errorf("claims taken over: got %d, want %d", len(taken), claims)
	}
}

// testClaimRace claims entities concurrently. Each due entity must go to only one scheduler.
func testClaimRace(b suite) {
	const schedulers, entities = 8, 400
	all := make([]prefetched.RegisteredEntity, entities)
	for n := range all {
		all[n] = registered(key(fmt.Sprint(n)), int64(n))
	}
	b.register(entities, all...)
	var mu sync.Mutex
	claims := map[schemas.Entity]int{}
	claim := func() bool {
		c := b.claim(entities, 7, dueLater)
		mu.Lock()
		defer mu.Unlock()
		for _, a := range c.Requests {
			claims[a.Entity]++
		}
		return len(c.Requests) > 0
	}
	var wg sync.WaitGroup
	for range schedulers {
		wg.Go(func() {
			for claim() {
			}
		})
	}
	wg.Wait()
	for claim() { // claim the entities that the calls above skipped, because another call had locked them
	}
	for e, n := range claims {
		if n != 1 {
			b.Errorf("%s: claimed %d times, want once", e, n)
		}
	}
	if len(claims) != entities {
		b.Errorf("entities claimed: got %d, want %d", len(claims), entities)
	}
	b.wantNextEntityTime(at(1_000_000))
}

func testBringForward(b suite) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	off := registered(key("off"), 25)
	off.Enabled = false
	b.register(5, z, off, x, y, registered(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 25))
	b.write([]store.Result{store.Changed}, content(z.Entity, 5, "z"))
	b.fail(failing(y.Entity, 9))
	after := func(us int64, limit int, want ...prefetched.RegisteredEntity) []prefetched.Candidate {
		b.Helper()
		all, err := b.store.EntitiesDueAfter(b.Context(), entity.Source, at(us), limit, func(string) bool { return true })
		if err != nil {
			b.Fatal(err)
		}
		var got []prefetched.RegisteredEntity
		for _, c := range all {
			got = append(got, c.RegisteredEntity)
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("due after %d: got\n%+v, want\n%+v", us, got, want)
		}
		return all
	}
	all := after(10, 10, y, z)
	if all[0].Status.State != store.Retrying || all[1].State.Version != 5 || len(all[1].Payload) == 0 {
		b.Errorf("candidates: got %+v", all)
	}
	after(9, 2, x, y)
	after(30, 10)
	unknown := schemas.Entity{Source: entity.Source, Facet: "f", Key: "unknown"}
	err := b.store.BringForward(b.Context(), []prefetched.DueTime{{Entity: z.Entity, At: at(5)}, {Entity: unknown, At: at(1)}, {Entity: x.Entity, At: at(15)}})
	if err != nil {
		b.Fatal(err)
	}
	z.Due = at(5)
	after(0, 10, z, x, y)
	b.wantEntities(prefetched.Filter{Source: unknown.Source, Facet: "f", KeyPrefix: "unknown"})
	if err := b.store.BringForward(b.Context(), nil); err != nil {
		b.Errorf("BringForward of nothing: got %v, want no error", err)
	}
}

func testPrice(b suite) {
	is := func(source string, want float64, when time.Time) {
		b.Helper()
		if p, t, err := b.store.Price(b.Context(), source); p != want || !t.Equal(when) || err != nil {
			b.Fatalf("price: got %v at %v, %v, want %v at %v", p, t, err, want, when)
		}
	}
	set := func(want bool, price float64, when int64) {
		b.Helper()
		if did, err := b.store.SetPrice(b.Context(), "nexon", price, at(when), 10*time.Second); did != want || err != nil {
			b.Fatal(did, err)
		}
	}
	is("nexon", 0, time.Time{})
	set(true, 0.1, 100)
	set(false, 0.2, 109)
	set(false, 0.2, 50)
	is("nexon", 0.1, at(100))
	set(true, 1e-300, 110)
	is("nexon", 1e-300, at(110))
	is("nexo", 0, time.Time{})
	var mu sync.Mutex
	writers := 0
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			did, err := b.store.SetPrice(b.Context(), "nexon", float64(n), at(200), 10*time.Second)
			if err != nil {
				b.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if did {
				writers++
			}
		})
	}
	wg.Wait()
	if writers != 1 {
		b.Errorf("writers of one interval's price: got %d, want 1", writers)
	}
}

func testClaimedContent(b suite) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	b.register(3, x, y, z)
	b.write([]store.Result{store.Changed, store.NotFoundStored}, content(x.Entity, 1, "<x>"), notFound(y.Entity, 2))
	for _, wanted := range []bool{true, false} {
		seen := map[string]string{}
		_, err := b.store.ClaimEntities(b.Context(), entity.Source, at(1000), 10, time.Minute, func(facet string) bool {
			return wanted && facet == entity.Facet
		}, func(c prefetched.Candidate) prefetched.Decision {
			if len(c.Payload) > 0 {
				text, err := store.Snapshot{State: c.State, Payload: c.Payload}.Decode(nil)
				if err != nil {
					b.Error(err)
				}
				seen[c.Entity.Key] = string(text)
			}
			return prefetched.Decision{Due: at(1), Tier: c.Tier}
		})
		want := map[string]string{}
		if wanted {
			want["x"] = `{"doc":"<x>"}`
		}
		if err != nil || !reflect.DeepEqual(seen, want) {
			b.Errorf("payloads of %v: got %v, %v, want %v", wanted, seen, err, want)
		}
	}
}
