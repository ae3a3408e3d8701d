package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// claim claims with decide, most of them, for a lease of 60 s.
func (b bench) claim(now int64, most int, decide func(store.Candidate) store.Move) store.Claim {
	b.Helper()
	c, err := b.store.ClaimEntities(b.Context(), entity.Source, at(now), most, time.Minute, nil, decide)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// far asks for whatever is due, and puts it far off.
func far(c store.Candidate) store.Move {
	return store.Move{Due: at(1_000_000), Tier: c.Tier, History: c.History, Ask: true}
}

func askOf(r store.Registered, version int64) store.Request {
	return store.Request{Entity: r.Entity, Params: r.Params, Version: version}
}

// claimsAre claims, and fails the test unless these were due, in their order.
func (b bench) claimsAre(now int64, most int, want ...store.Registered) {
	b.Helper()
	var asks []store.Request
	for _, r := range want {
		asks = append(asks, askOf(r, 0))
	}
	if c := b.claim(now, most, far); !reflect.DeepEqual(c.Asks, asks) || (c.ID == "") != (len(want) == 0) {
		b.Fatalf("claimed\n%+v, want\n%+v", c, asks)
	}
}

func (b bench) nextEntity(want time.Time) {
	b.Helper()
	if got, err := b.store.NextDueEntity(b.Context(), entity.Source); err != nil || !got.Equal(want) {
		b.Fatalf("the next is due at %v, %v; want %v", got, err, want)
	}
}

func testClaim(b bench) {
	b.nextEntity(time.Time{})
	b.claimsAre(100, 10)
	x, y, z := registered(key("z"), 10), registered(key("y"), 20), registered(key("x"), 30)
	off := registered(key("off"), 1)
	off.Enabled = false
	b.register(5, z, off, x, y, registered(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 5))
	b.nextEntity(at(10))
	b.claimsAre(9, 10)
	b.claimsAre(30, 2, x, y)
	b.nextEntity(at(30))
	b.claimsAre(30, 2, z)
	b.nextEntity(at(1_000_000))
	b.claimsAre(999_999, 10)
}

// testDecide shows what the one who decides is told, and that what it says is kept.
func testDecide(b bench) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	b.register(3, x, y, z)
	b.write([]store.Result{store.Changed, store.Absented}, content(x.Entity, 5, "x"), absence(z.Entity, 6))
	failed := failing(x.Entity, 9)
	b.fail(failed, failing(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "y"}, 9))
	var told []store.Candidate
	moved := map[schemas.Entity]store.Move{
		x.Entity: {Due: at(200), Tier: store.Hot, Ask: true, History: store.History{ClaimedAt: at(10), UpdatedAt: at(5), Changes: 0.1, Watched: time.Second, Reads: 1e-9, ReadAt: at(99)}},
		y.Entity: {Due: at(300), Tier: store.Cold},
		z.Entity: {Due: at(100), Tier: store.Warm, History: z.History, Ask: true},
	}
	c := b.claim(50, 10, func(c store.Candidate) store.Move {
		told = append(told, c)
		return moved[c.Entity]
	})
	states, err := b.store.States(b.Context(), []schemas.Entity{x.Entity, y.Entity, z.Entity})
	if err != nil {
		b.Fatal(err)
	}
	want := []store.Candidate{
		{Registered: x, State: states[0], Status: failed},
		{Registered: y, State: store.State{Entity: y.Entity}, Status: store.Status{Entity: y.Entity}},
		{Registered: z, State: states[2], Status: store.Status{Entity: z.Entity}},
	}
	if !reflect.DeepEqual(told, want) {
		b.Fatalf("told\n%+v, want\n%+v", told, want)
	}
	if asks := []store.Request{askOf(x, 5), askOf(z, 6)}; c.ID == "" || c.Source != entity.Source || !c.At.Equal(at(50)) || !reflect.DeepEqual(c.Asks, asks) {
		b.Fatalf("%+v, want %+v", c, asks)
	}
	for _, r := range []*store.Registered{&x, &y, &z} {
		m := moved[r.Entity]
		r.Due, r.Tier, r.History = m.Due, m.Tier, m.History
	}
	b.lists(store.EntityFilter{}, x, y, z)
	b.nextEntity(at(100))
}

// testNothingAsked: where nothing is asked for there is no claim, and the due times have
// moved.
func testNothingAsked(b bench) {
	b.register(1, registered(entity, 10))
	if c := b.claim(50, 10, func(store.Candidate) store.Move { return store.Move{Due: at(60)} }); c.ID != "" || len(c.Asks) != 0 {
		b.Errorf("%+v", c)
	}
	if _, found, err := b.store.AbandonedClaim(b.Context(), entity.Source, at(1_000_000), time.Hour); found || err != nil {
		b.Error(found, err)
	}
	b.nextEntity(at(60))
}

// testClaimDies: a claimant that dies before it has committed has claimed nothing.
func testClaimDies(b bench) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	b.register(2, x, y)
	dead := errors.New("dead")
	func() {
		defer func() {
			if p := recover(); p != dead { //nolint:errorlint // the very one
				b.Error(p)
			}
		}()
		n := 0
		_, _ = b.store.ClaimEntities(b.Context(), entity.Source, at(50), 10, time.Minute, nil, func(store.Candidate) store.Move {
			if n++; n == 2 {
				panic(dead)
			}
			return store.Move{Due: at(99), Ask: true}
		})
	}()
	b.lists(store.EntityFilter{}, x, y)
	if _, found, err := b.store.AbandonedClaim(b.Context(), entity.Source, at(1_000_000), time.Hour); found || err != nil {
		b.Error(found, err)
	}
	b.claimsAre(50, 10, x, y)
}

func testAbandoned(b bench) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	b.register(2, x, y)
	abandoned := func(now int64) (store.Claim, bool) {
		b.Helper()
		c, found, err := b.store.AbandonedClaim(b.Context(), entity.Source, at(now), 100*time.Second)
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
	first := b.claim(10, 1, far)  // until 70
	second := b.claim(20, 1, far) // until 80
	if _, found := abandoned(69); found {
		b.Fatal("a claim that is held was taken over")
	}
	if !renewed(first.ID, 200) {
		b.Fatal("a claim that is held could not be renewed")
	}
	taken, found := abandoned(90) // until 190
	if !found || taken.ID == second.ID || !taken.At.Equal(at(20)) || taken.Source != entity.Source || !reflect.DeepEqual(taken.Asks, second.Asks) {
		b.Fatalf("took over %+v, want %+v", taken, second)
	}
	if _, found := abandoned(91); found || renewed(second.ID, 500) {
		b.Fatal("a claim has two holders")
	}
	if err := b.store.FinishClaim(b.Context(), second.ID); err != nil { // by the one who held it before
		b.Fatal(err)
	}
	again, found := abandoned(190)
	if !found || !reflect.DeepEqual(again.Asks, second.Asks) || !renewed(again.ID, 300) {
		b.Fatalf("%+v", again)
	}
	for range 2 {
		if err := b.store.FinishClaim(b.Context(), again.ID); err != nil {
			b.Fatal(err)
		}
	}
	if c, found := abandoned(250); !found || !reflect.DeepEqual(c.Asks, first.Asks) {
		b.Fatalf("%+v", c)
	}
	if _, found := abandoned(251); found || renewed(again.ID, 300) {
		b.Error("a finished claim is there")
	}
	if _, found, err := b.store.AbandonedClaim(b.Context(), "nexo", at(1000), time.Hour); found || err != nil {
		b.Error(found, err)
	}
}

// testAbandonedRace has many take over what has been abandoned: each claim goes to one.
func testAbandonedRace(b bench) {
	const claims = 12
	for n := range int64(claims) {
		b.register(1, registered(key(fmt.Sprint(n)), n))
		b.claim(n, 1, far)
	}
	var mu sync.Mutex
	taken := map[schemas.Entity]int{}
	var wg sync.WaitGroup
	take := func() bool {
		c, found, err := b.store.AbandonedClaim(b.Context(), entity.Source, at(1000), time.Hour)
		if err != nil {
			b.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, a := range c.Asks {
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
	for take() { // passed over while another was at it
	}
	for e, n := range taken {
		if n != 1 {
			b.Errorf("%s was taken over %d times", e, n)
		}
	}
	if len(taken) != claims {
		b.Errorf("%d of %d were taken over", len(taken), claims)
	}
}

// testClaimRace has schedulers claim at once: each due time goes to one of them.
func testClaimRace(b bench) {
	const schedulers, entities = 8, 400
	all := make([]store.Registered, entities)
	for n := range all {
		all[n] = registered(key(fmt.Sprint(n)), int64(n))
	}
	b.register(entities, all...)
	var mu sync.Mutex
	claims := map[schemas.Entity]int{}
	claim := func() bool {
		c := b.claim(entities, 7, far)
		mu.Lock()
		defer mu.Unlock()
		for _, a := range c.Asks {
			claims[a.Entity]++
		}
		return len(c.Asks) > 0
	}
	var wg sync.WaitGroup
	for range schedulers {
		wg.Go(func() {
			for claim() {
			}
		})
	}
	wg.Wait()
	for claim() { // passed over while another was at it
	}
	for e, n := range claims {
		if n != 1 {
			b.Errorf("%s was claimed %d times", e, n)
		}
	}
	if len(claims) != entities {
		b.Errorf("%d of %d were claimed", len(claims), entities)
	}
	b.nextEntity(at(1_000_000))
}

func testBringForward(b bench) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	off := registered(key("off"), 25)
	off.Enabled = false
	b.register(5, z, off, x, y, registered(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 25))
	b.write([]store.Result{store.Changed}, content(z.Entity, 5, "z"))
	b.fail(failing(y.Entity, 9))
	after := func(us int64, most int, want ...store.Registered) []store.Candidate {
		b.Helper()
		all, err := b.store.EntitiesDueAfter(b.Context(), entity.Source, at(us), most, func(string) bool { return true })
		if err != nil {
			b.Fatal(err)
		}
		var got []store.Registered
		for _, c := range all {
			got = append(got, c.Registered)
		}
		if !reflect.DeepEqual(got, want) {
			b.Fatalf("due after %d: got\n%+v, want\n%+v", us, got, want)
		}
		return all
	}
	all := after(10, 10, y, z)
	if all[0].Status.State != store.Retrying || all[1].State.Version != 5 || len(all[1].Payload) == 0 {
		b.Errorf("what is stored of them: got %+v", all)
	}
	after(9, 2, x, y)
	after(30, 10)
	unknown := schemas.Entity{Source: entity.Source, Facet: "f", Key: "unknown"}
	err := b.store.BringForward(b.Context(), []store.DueTime{{Entity: z.Entity, At: at(5)}, {Entity: unknown, At: at(1)}, {Entity: x.Entity, At: at(15)}})
	if err != nil {
		b.Fatal(err)
	}
	z.Due = at(5)
	after(0, 10, z, x, y)
	b.lists(store.EntityFilter{Source: unknown.Source, Facet: "f", KeyPrefix: "unknown"})
	if err := b.store.BringForward(b.Context(), nil); err != nil {
		b.Errorf("nothing to bring forward: got %v, want no error", err)
	}
}

func testPrice(b bench) {
	is := func(source string, want float64, when time.Time) {
		b.Helper()
		if p, t, err := b.store.Price(b.Context(), source); p != want || !t.Equal(when) || err != nil {
			b.Fatalf("the price is %v at %v, %v; want %v at %v", p, t, err, want, when)
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
		b.Errorf("%d wrote the price of one interval", writers)
	}
}

func testClaimedContent(b bench) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	b.register(3, x, y, z)
	b.write([]store.Result{store.Changed, store.Absented}, content(x.Entity, 1, "<x>"), absence(y.Entity, 2))
	for _, wanted := range []bool{true, false} {
		seen := map[string]string{}
		_, err := b.store.ClaimEntities(b.Context(), entity.Source, at(1000), 10, time.Minute, func(facet string) bool {
			return wanted && facet == entity.Facet
		}, func(c store.Candidate) store.Move {
			if len(c.Payload) > 0 {
				text, err := store.Snapshot{State: c.State, Payload: c.Payload}.Decode(nil)
				if err != nil {
					b.Error(err)
				}
				seen[c.Entity.Key] = string(text)
			}
			return store.Move{Due: at(1), Tier: c.Tier}
		})
		want := map[string]string{}
		if wanted {
			want["x"] = `{"doc":"<x>"}`
		}
		if err != nil || !reflect.DeepEqual(seen, want) {
			b.Errorf("wanted: %v: %v, %v; want %v", wanted, seen, err, want)
		}
	}
}
