package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store/prefetched"
)

// Entities stores the prefetched entities and the claims of schedulers.
type Entities interface {
	// RegisterEntities returns how many entities were new. For registered entities it replaces
	// params, pinned and enabled, and the tier if the new row is pinned.
	RegisterEntities(ctx context.Context, all []prefetched.RegisteredEntity) (added int, err error)
	// ObserveReads adds reads to entities, and registers unknown entities.
	ObserveReads(ctx context.Context, reads []prefetched.EntityReads, risen prefetched.RefreshNowFunc) error
	// EnableEntities returns how many entities it changed. If keys is not nil, it changes the
	// entities with these keys of the filter's source and facet; otherwise all entities that match
	// the filter.
	EnableEntities(ctx context.Context, filter prefetched.Filter, keys []string, enabled bool) (int, error)
	// PinEntities and UnpinEntities return how many entities they changed.
	PinEntities(ctx context.Context, of []schemas.Entity, tier prefetched.Tier) (int, error)
	UnpinEntities(ctx context.Context, of []schemas.Entity) (int, error)
	// Entities returns at most `limit` entities that match the filter, in the order of source,
	// facet and key. The list starts after the entity `after`.
	Entities(ctx context.Context, filter prefetched.Filter, after schemas.Entity, limit int) ([]prefetched.RegisteredEntity, error)
	// CountEntities may return an estimate; `exact` is then false.
	CountEntities(ctx context.Context, filter prefetched.Filter) (n int64, exact bool, err error)
	// DeleteEntity reports whether the entity was registered. Its snapshot is kept.
	DeleteEntity(ctx context.Context, e schemas.Entity) (existed bool, err error)
	// ClaimEntities stores the new due times and the claim in one transaction.
	ClaimEntities(ctx context.Context, source string, now time.Time, limit int, lease time.Duration, content func(facet string) bool, decide func(prefetched.Candidate) prefetched.Decision) (prefetched.Claim, error)
	// FinishClaim deletes the claim, if it exists.
	FinishClaim(ctx context.Context, id string) error
	// RenewClaim extends a claim; `held` is false if the claim was taken over or deleted.
	RenewClaim(ctx context.Context, id string, until time.Time) (held bool, err error)
	// TakeOverClaim takes over an expired claim. If several calls run concurrently, only one of
	// them gets the claim.
	TakeOverClaim(ctx context.Context, source string, now time.Time, lease time.Duration) (prefetched.Claim, bool, error)
	// NextEntityTime returns the earliest due time; zero if the source has no entities.
	NextEntityTime(ctx context.Context, source string) (time.Time, error)
	// EntitiesDueAfter returns entities that are due after a time, earliest first.
	EntitiesDueAfter(ctx context.Context, source string, after time.Time, limit int, content func(facet string) bool) ([]prefetched.Candidate, error)
	// BringForward makes entities due earlier, never later.
	BringForward(ctx context.Context, all []prefetched.DueTime) error
	// EntityParams returns the registered params of the entities, in the given order; nil for an entity that
	// is not registered.
	EntityParams(ctx context.Context, entities []schemas.Entity) ([]map[string]string, error)
	// Registrations returns the registrations in the given order; nil for an entity without one.
	Registrations(ctx context.Context, entities []schemas.Entity) ([]*prefetched.RegisteredEntity, error)
	// SampleEntities returns at most `limit` enabled entities of a source.
	SampleEntities(ctx context.Context, source string, limit int) ([]prefetched.RegisteredEntity, error)
	// Price returns the stored price of the source; zero if none is stored.
	Price(ctx context.Context, source string) (price float64, at time.Time, err error)
	// SetPrice writes the price, unless the stored price was set less than the duration `every` before
	// the time `at`.
	SetPrice(ctx context.Context, source string, price float64, at time.Time, every time.Duration) (set bool, err error)
	// DeleteExpired examines the next `limit` snapshots. It deletes content fetched before the time
	// `content`, and not-found results checked before the time `notFound`. DeleteOldStatuses examines
	// the next `limit` statuses. It deletes statuses of entities without a snapshot if their last
	// failure was before the time "before".
	DeleteExpired(ctx context.Context, source, facet string, content, notFound time.Time, limit int) (deleted int, done bool, err error)
	DeleteOldStatuses(ctx context.Context, source, facet string, before time.Time, limit int) (deleted int, done bool, err error)
}

// registered returns an entity with the given due time and with a value in every field.
func registered(e schemas.Entity, due int64) prefetched.RegisteredEntity {
	return prefetched.RegisteredEntity{
		Entity: e, Params: map[string]string{"due": fmt.Sprint(due), "<가>": "\u2028'\"&"}, Tier: prefetched.Warm,
		Enabled: true, Due: at(due),
		History: prefetched.History{
			ClaimedAt: at(due - 7), UpdatedAt: at(due - 9), Changes: 1.0 / 3, Watched: 90 * time.Minute,
			Reads: 2.5, ReadAt: at(due - 1),
		},
	}
}

func (b suite) register(want int, all ...prefetched.RegisteredEntity) {
	b.Helper()
	if added, err := b.store.RegisterEntities(b.Context(), all); added != want || err != nil {
		b.Fatalf("RegisterEntities: got %d, %v, want %d", added, err, want)
	}
}

func (b suite) observe(reads ...prefetched.EntityReads) {
	b.Helper()
	if err := b.store.ObserveReads(b.Context(), reads, nil); err != nil {
		b.Fatal(err)
	}
}

// wantEntities fails the test unless the filter matches these entities, in this order. It lists
// them with several page sizes.
func (b suite) wantEntities(f prefetched.Filter, want ...prefetched.RegisteredEntity) {
	b.Helper()
	for _, limit := range []int{1, 2, 100} {
		var all []prefetched.RegisteredEntity
		for after := (schemas.Entity{}); ; after = all[len(all)-1].Entity {
			page, err := b.store.Entities(b.Context(), f, after, limit)
			if err != nil || len(page) > limit {
				b.Fatal(len(page), err)
			}
			if all = append(all, page...); len(page) == 0 {
				break
			}
		}
		if len(all) != len(want) || (len(want) > 0 && !reflect.DeepEqual(all, want)) {
			b.Fatalf("Entities(%+v) with limit %d: got\n%+v, want\n%+v", f, limit, all, want)
		}
	}
	if n, exact, err := b.store.CountEntities(b.Context(), f); int(n) != len(want) || !exact || err != nil {
		b.Errorf("CountEntities(%+v): got %d (exact: %v), %v, want %d", f, n, exact, err, len(want))
	}
}

func testRegister(b suite) {
	b.wantEntities(prefetched.Filter{})
	b.register(0)
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	y.Params, y.Due, y.History, y.Enabled = nil, time.Time{}, prefetched.History{}, false
	b.register(3, z, x, y)
	b.wantEntities(prefetched.Filter{}, x, y, z)
	b.register(0, z, x, y)

	again := prefetched.RegisteredEntity{Entity: x.Entity, Params: map[string]string{"other": "1"}, Tier: prefetched.Cold, Due: at(99)}
	yy := y
	yy.Tier, yy.Pinned = prefetched.Hot, true
	w := registered(key("w"), 40)
	first := w
	first.Tier = prefetched.Cold
	b.register(1, again, first, yy, w) // two rows belong to one entity: the last row is stored
	x.Params, x.Enabled, y.Tier, y.Pinned = again.Params, false, prefetched.Hot, true
	b.wantEntities(prefetched.Filter{}, w, x, y, z)

	yy.Tier = prefetched.Warm // the entity is pinned already; the new row has another tier
	b.register(0, yy)
	y.Tier = prefetched.Warm
	b.wantEntities(prefetched.Filter{}, w, x, y, z)
	yy.Tier, yy.Pinned = prefetched.Cold, false // the entity is no longer pinned, and keeps its tier
	b.register(0, yy)
	y.Pinned = false
	b.wantEntities(prefetched.Filter{}, w, x, y, z)

	for _, want := range []bool{true, false} {
		if was, err := b.store.DeleteEntity(b.Context(), x.Entity); was != want || err != nil {
			b.Errorf("DeleteEntity: got %v, %v", was, err)
		}
	}
	b.wantEntities(prefetched.Filter{}, w, y, z)
}

func testPin(b suite) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	other := registered(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "x"}, 40)
	b.register(3, x, y, other)
	changed := func(n int, err error) func(want int) {
		return func(want int) {
			b.Helper()
			if n != want || err != nil {
				b.Errorf("changed: got %d, %v; want %d", n, err, want)
			}
		}
	}
	of := []schemas.Entity{y.Entity, x.Entity, key("unknown"), x.Entity}
	changed(b.store.PinEntities(b.Context(), of, prefetched.Warm))(2)
	changed(b.store.PinEntities(b.Context(), of, prefetched.Warm))(0)
	changed(b.store.PinEntities(b.Context(), of[:1], prefetched.Hot))(1)
	x.Pinned, y.Pinned, y.Tier = true, true, prefetched.Hot
	b.wantEntities(prefetched.Filter{}, other, x, y)
	changed(b.store.UnpinEntities(b.Context(), of))(2)
	changed(b.store.UnpinEntities(b.Context(), of))(0)
	changed(b.store.PinEntities(b.Context(), nil, prefetched.Hot))(0)
	x.Pinned, y.Pinned = false, false
	b.wantEntities(prefetched.Filter{}, other, x, y)
}

// testRegisterMany registers and disables more entities than one transaction writes.
func testRegisterMany(b suite) {
	const n = 5_500 // more entities than one batch has
	all := make([]prefetched.RegisteredEntity, n)
	for i := range all {
		all[i] = prefetched.RegisteredEntity{Entity: key(fmt.Sprintf("%06d", (i*7919)%n)), Enabled: true, Due: at(int64(i))}
	}
	b.register(n, all...)
	b.register(1, append(all, registered(key("new"), 1))...)
	if n, _, err := b.store.CountEntities(b.Context(), prefetched.Filter{Source: entity.Source}); n != int64(len(all)+1) || err != nil {
		b.Errorf("EnableEntities: got %v, %v", n, err)
	}
	b.switched(n+1, prefetched.Filter{Source: entity.Source}, nil, false)
	b.wantEntities(prefetched.Filter{Enabled: new(true)})
}

func (b suite) switched(want int, f prefetched.Filter, keys []string, enabled bool) {
	b.Helper()
	if n, err := b.store.EnableEntities(b.Context(), f, keys, enabled); n != want || err != nil {
		b.Fatalf("EnableEntities: got %d, %v, want %d", n, err, want)
	}
}

func testEntityFilter(b suite) {
	of := func(source, facet, key string, tier prefetched.Tier, enabled bool) prefetched.RegisteredEntity {
		r := registered(schemas.Entity{Source: source, Facet: facet, Key: key}, 5)
		r.Tier, r.Enabled = tier, enabled
		return r
	}
	all := []prefetched.RegisteredEntity{
		of("nexo", "f", "ab", prefetched.Hot, true), of("nexon", "e", "ab", prefetched.Warm, false), of("nexon", "f", "A", prefetched.Hot, true),
		of("nexon", "f", "a", prefetched.Cold, true), of("nexon", "f", "ab", prefetched.Hot, false), of("nexon", "f", "abc", prefetched.Hot, true),
		of("nexon", "f", "ac", prefetched.Warm, true), of("nexon", "f", "a\U0010FFFF", prefetched.Hot, true), of("nexon", "f", "a\U0010FFFFb", prefetched.Hot, true),
		of("nexon", "f", "b", prefetched.Hot, true), of("nexon", "f", "\uD7FF%", prefetched.Hot, true), of("nexon", "f", "\uE000", prefetched.Hot, true),
	}
	b.register(len(all), all...)
	choose := func(indices ...int) (chosen []prefetched.RegisteredEntity) {
		for _, i := range indices {
			chosen = append(chosen, all[i])
		}
		return chosen
	}
	b.wantEntities(prefetched.Filter{}, all...)
	b.wantEntities(prefetched.Filter{Source: "nexo"}, all[0])
	b.wantEntities(prefetched.Filter{Facet: "e"}, all[1])
	b.wantEntities(prefetched.Filter{Tier: new(prefetched.Warm)}, choose(1, 6)...)
	b.wantEntities(prefetched.Filter{Enabled: new(false)}, choose(1, 4)...)
	b.wantEntities(prefetched.Filter{KeyPrefix: "ab"}, choose(0, 1, 4, 5)...)
	b.wantEntities(prefetched.Filter{Source: "nexon", Facet: "f", KeyPrefix: "a"}, choose(3, 4, 5, 6, 7, 8)...)
	b.wantEntities(prefetched.Filter{Source: "nexon", Facet: "f", KeyPrefix: "a\U0010FFFF"}, choose(7, 8)...)
	b.wantEntities(prefetched.Filter{KeyPrefix: "\uD7FF"}, all[10])
	b.wantEntities(prefetched.Filter{KeyPrefix: "\U0010FFFF"})
	b.wantEntities(prefetched.Filter{KeyPrefix: "%"})
	b.wantEntities(prefetched.Filter{Source: "nexon", Facet: "f", Tier: new(prefetched.Hot), Enabled: new(true), KeyPrefix: "ab"}, all[5])
}

func testEnable(b suite) {
	x, y, z := registered(key("x"), 10), registered(key("y"), 20), registered(key("z"), 30)
	other := registered(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "x"}, 40)
	y.Enabled = false
	b.register(4, x, y, z, other)
	facet := prefetched.Filter{Source: entity.Source, Facet: entity.Facet}
	b.switched(1, facet, []string{"x", "y", "nobody", "x"}, false)
	b.switched(0, facet, []string{}, false)
	x.Enabled = false
	b.wantEntities(prefetched.Filter{}, other, x, y, z)
	b.switched(2, prefetched.Filter{}, nil, false)
	x.Enabled, y.Enabled, z.Enabled, other.Enabled = false, false, false, false
	b.wantEntities(prefetched.Filter{}, other, x, y, z)
	b.switched(0, prefetched.Filter{Enabled: new(true)}, nil, true)
	b.switched(1, prefetched.Filter{Source: entity.Source, KeyPrefix: "x", Enabled: new(false)}, nil, true)
	x.Enabled = true
	b.wantEntities(prefetched.Filter{}, other, x, y, z)
	if _, err := b.store.EnableEntities(b.Context(), prefetched.Filter{Source: entity.Source}, []string{"x"}, true); err == nil {
		b.Error("EnableEntities accepted keys without a facet")
	}
}

func testReads(b suite) {
	x := registered(key("x"), 10)
	y := prefetched.RegisteredEntity{Entity: key("y"), Enabled: false, Tier: prefetched.Cold}
	b.register(2, x, y)
	b.observe()
	reads := func(k string, count int, until int64) prefetched.EntityReads {
		return prefetched.EntityReads{Entity: key(k), Count: count, At: at(until), Due: at(77), Tier: prefetched.Warm}
	}
	b.observe(reads("y", 4, 50), reads("x", 3, 60), reads("new", 1, 8), reads("x", 2, 40), reads("new", 1, 9))
	x.History.Reads, x.History.ReadAt = 7.5, at(60)
	y.History.Reads, y.History.ReadAt = 4, at(50)
	added := prefetched.RegisteredEntity{
		Entity: key("new"), Tier: prefetched.Warm, Enabled: true, Due: at(77),
		History: prefetched.History{Reads: 2, ReadAt: at(9)},
	}
	b.wantEntities(prefetched.Filter{}, added, x, y)
	b.observe(reads("x", 1, 30))
	x.History.Reads++
	b.wantEntities(prefetched.Filter{KeyPrefix: "x"}, x)
}

// testEntityWritesNoDeadlock writes the same entities concurrently in different orders. No call
// may fail, and every read must be counted.
func testEntityWritesNoDeadlock(b suite) {
	const rounds, keys = 25, 60
	all := make([]prefetched.RegisteredEntity, keys)
	for i := range all {
		all[i] = prefetched.RegisteredEntity{Entity: key(fmt.Sprintf("%03d", i)), Enabled: true, Due: at(int64(keys - i))}
	}
	b.register(keys, all...)
	turned := func(by int) []prefetched.RegisteredEntity { return slices.Concat(all[by%keys:], all[:by%keys]) }
	var wg sync.WaitGroup
	repeat := func(do func(round int) error) {
		wg.Go(func() {
			for round := range rounds {
				if err := do(round); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for n := range 2 {
		repeat(func(round int) error {
			_, err := b.store.RegisterEntities(b.Context(), turned(round*7+n))
			return err
		})
		repeat(func(round int) error {
			var reads []prefetched.EntityReads
			for _, r := range turned(round*13 + n) {
				reads = append(reads, prefetched.EntityReads{Entity: r.Entity, Count: 1, At: at(int64(round)), Due: r.Due})
			}
			slices.Reverse(reads)
			return b.store.ObserveReads(b.Context(), reads, nil)
		})
		repeat(func(round int) error {
			_, err := b.store.ClaimEntities(b.Context(), entity.Source, at(1000), keys/2, time.Minute, nil, func(c prefetched.Candidate) prefetched.Decision {
				return prefetched.Decision{Due: at(int64(round)), Tier: c.Tier, History: c.History, Enqueue: true}
			})
			return err
		})
		repeat(func(round int) error {
			var keys []string
			for _, r := range turned(round * 17) {
				keys = append(keys, r.Entity.Key)
			}
			slices.Reverse(keys)
			_, err := b.store.EnableEntities(b.Context(), prefetched.Filter{Source: entity.Source, Facet: entity.Facet}, keys, round%2 == n)
			return err
		})
		repeat(func(round int) error {
			_, err := b.store.EnableEntities(b.Context(), prefetched.Filter{Source: entity.Source}, nil, round%2 == n)
			return err
		})
	}
	wg.Wait()
	page, err := b.store.Entities(b.Context(), prefetched.Filter{}, schemas.Entity{}, 2*keys)
	if err != nil || len(page) != keys {
		b.Fatal(len(page), err)
	}
	for _, r := range page {
		if r.History.Reads != 2*rounds || !r.History.ReadAt.Equal(at(rounds-1)) {
			b.Errorf("%s: got reads %v until %v", r.Entity, r.History.Reads, r.History.ReadAt)
		}
	}
}

func testEntityParams(b suite) {
	x, y := registered(key("x"), 10), registered(key("y"), 20)
	y.Params = nil
	b.register(2, x, y)
	got, err := b.store.EntityParams(b.Context(), []schemas.Entity{key("none"), y.Entity, x.Entity, x.Entity})
	if want := []map[string]string{nil, {}, x.Params, x.Params}; err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("%v, %v; want %v", got, err, want)
	}
}

func testRefreshNow(b suite) {
	x, y := registered(key("x"), 1000), registered(key("y"), 1000)
	y.Due, x.Pinned = at(5), true
	b.register(2, x, y)
	had := x.History.Reads
	observe := func(seconds int64, want bool, of ...schemas.Entity) {
		b.Helper()
		var reads []prefetched.EntityReads
		for _, e := range of {
			reads = append(reads, prefetched.EntityReads{Entity: e, Count: 3, At: at(seconds), Due: at(2000), Tier: prefetched.Cold})
		}
		seen := 0
		err := b.store.ObserveReads(b.Context(), reads, func(r prefetched.RegisteredEntity, before, after float64) bool {
			seen++
			if r.Entity == x.Entity && (r.Tier != x.Tier || r.Pinned != x.Pinned || before != had || after != had+3) {
				b.Errorf("refreshNow: got tier %v, pinned %v, %v reads before, %v after", r.Tier, r.Pinned, before, after)
			}
			return want
		})
		if err != nil || seen != len(of) {
			b.Fatal(seen, err)
		}
		had += 3
	}
	observe(10, false, x.Entity, key("new"))
	b.wantNextEntityTime(at(5))
	observe(20, true, x.Entity, y.Entity, key("new"))
	for _, want := range []struct {
		of  schemas.Entity
		due int64
	}{{x.Entity, 20}, {y.Entity, 5}, {key("new"), 20}} {
		all, err := b.store.Entities(b.Context(), prefetched.Filter{Source: entity.Source, KeyPrefix: want.of.Key}, schemas.Entity{}, 1)
		if err != nil || len(all) != 1 || !all[0].Due.Equal(at(want.due)) {
			b.Errorf("%s: got %v, %v, want due at %v", want.of, all, err, at(want.due))
		}
	}
}
