package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"sync"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// alias is the entity that `entity` takes a param from.
var alias = schemas.Entity{Source: entity.Source, Facet: "id", Key: entity.Key}

// aliasState returns the stored state of the alias.
func (b suite) aliasState() store.State {
	b.Helper()
	states, err := b.store.States(b.Context(), []schemas.Entity{alias})
	if err != nil {
		b.Fatal(err)
	}
	return states[0]
}

// withAlias returns the write of a fetch that used this state of the alias.
func withAlias(w store.Write, s store.State) store.Write {
	w.Aliases = []store.State{s}
	return w
}

// ofAlias returns the write of a fetch of the alias, which names `entity` as its user.
func ofAlias(w store.Write) store.Write {
	w.AliasUsers = []string{entity.Facet}
	return w
}

func testAliasGuard(b suite) {
	b.write(one(store.BaseMissing), b.withoutPayload(withAlias(content(entity, 1, "a"), store.State{Entity: alias}))) // nothing is stored for the alias, so the write is not stored
	b.write(one(store.Changed), ofAlias(content(alias, 1, "A")))
	a := b.aliasState()
	b.write(one(store.Changed), withAlias(content(entity, 2, "a"), a))
	b.write(one(store.Touched), ofAlias(content(alias, 3, "A"))) // a check that finds the same alias
	b.write(one(store.Touched), withAlias(content(entity, 4, "a"), a))

	b.write(one(store.Changed), ofAlias(content(alias, 5, "B")))
	for _, w := range []store.Write{
		b.withoutPayload(withAlias(content(entity, 6, "other"), a)),
		withAlias(content(entity, 6, "a"), a),
		withAlias(notFound(entity, 6), a),
	} {
		b.write(one(store.BaseMissing), w)
	}
	b.wantSnapshot(entity, "a", 4, 4, 4, 2)
	b.fail(failing(entity, 5))
	b.write(one(store.BaseMissing), withAlias(content(entity, 6, "a"), a))
	b.hasStatus(failing(entity, 5)) // a write that is not stored deletes no status

	b.write(one(store.NotFoundStored), ofAlias(notFound(alias, 7)))
	b.write(one(store.BaseMissing), withAlias(content(entity, 8, "a"), a))
	b.write(one(store.NotFoundStored), withAlias(notFound(entity, 8), b.aliasState()))
	if err := b.store.Delete(b.Context(), alias); err != nil {
		b.Fatal(err)
	}
	b.write(one(store.BaseMissing), withAlias(content(entity, 9, "other"), a))
}

// testAliasPayload writes aliases with short and with long content. Each replacement must be read.
func testAliasPayload(b suite) {
	digits := rand.NewChaCha8([32]byte{})
	long := make([]byte, 2000)
	for i := range long {
		long[i] = byte('0' + digits.Uint64()%10)
	}
	for n, text := range []string{"A", string(long), "B", "C"} {
		version := int64(n + 1)
		b.write(one(store.Changed), within("partner", ofAlias(content(alias, version, text))))
		b.wantSnapshot(alias, text, version, version, version, version)
		if all, err := b.store.GetAll(b.Context(), []schemas.Entity{alias}); err != nil || !reflect.DeepEqual(all[0], b.get(alias)) {
			b.Fatalf("GetAll: got %+v, %v, want %+v", all, err, b.get(alias))
		}
	}
	b.write(one(store.NotFoundStored), within("partner", notFound(alias, 5)))
	if content, err := b.get(alias).Decode(nil); err != nil || string(content) != `{"doc":"C"}` {
		b.Errorf("content that is kept: got %s, %v, want C", content, err)
	}
	b.write(one(store.NotFoundStored), within("staff", notFound(alias, 6)))
	if s := b.get(alias); s.Payload != nil {
		b.Errorf("payload for clients of another visibility: got %q, want none", s.Payload)
	}
}

// testAliasUnchanged: fetches with a changed alias return the content that is already stored.
func testAliasUnchanged(b suite) {
	for n, w := range []store.Write{content(alias, 1, "A"), notFound(alias, 4), content(alias, 7, "B")} {
		if _, err := b.store.Write(b.Context(), []store.Write{ofAlias(w)}); err != nil {
			b.Fatal(err)
		}
		if w.Kind == store.KindNotFound {
			continue
		}
		a, want, version := b.aliasState(), store.Touched, w.Version
		if n == 0 {
			want = store.Changed
		}
		b.write(one(want), withAlias(content(entity, version+1, "a"), a))
		b.write(one(store.Touched), b.withoutPayload(withAlias(content(entity, version+2, "a"), a)))
	}
}

// testAliasChangeRace changes an alias while a fetch with the earlier alias touches its entity. After
// the change, no fetch with the earlier alias may touch the entity.
func testAliasChangeRace(b suite) {
	for n := range 50 {
		e := schemas.Entity{Source: entity.Source, Facet: entity.Facet, Key: fmt.Sprint("changed-", n)}
		a := schemas.Entity{Source: entity.Source, Facet: "id", Key: e.Key}
		before := store.State{Entity: a, Hash: content(a, 1, "A").Hash}
		b.write([]store.Result{store.Changed, store.Changed}, ofAlias(content(a, 1, "A")), content(e, 1, "a"))
		var wg sync.WaitGroup
		for _, w := range []store.Write{ofAlias(content(a, 2, "B")), withAlias(content(e, 2, "a"), before)} {
			wg.Go(func() {
				if _, err := b.store.Write(b.Context(), []store.Write{w}); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		b.write(one(store.BaseMissing), withAlias(content(e, 3, "a"), before))
	}
}

func testAliasInBatch(b suite) {
	b.write(one(store.Changed), content(alias, 1, "A"))
	a := b.aliasState()
	b.write([]store.Result{store.BaseMissing, store.Changed}, withAlias(content(entity, 2, "a"), a), ofAlias(content(alias, 3, "B")))
	a = b.aliasState()
	b.write([]store.Result{store.Changed, store.Touched}, withAlias(content(entity, 4, "b"), a), ofAlias(content(alias, 5, "B")))
	b.write([]store.Result{store.Touched, store.Touched}, withAlias(content(entity, 5, "b"), a), ofAlias(content(alias, 5, "B")))
	b.write([]store.Result{store.BaseMissing, store.Changed}, withAlias(content(entity, 5, "b"), a), ofAlias(content(alias, 6, "D")))
	b.write([]store.Result{store.BaseMissing}, withAlias(content(entity, 5, "b"), a))
	b.write(one(store.Changed), ofAlias(content(alias, 6, "B")))
	b.write([]store.Result{store.BaseMissing, store.NotFoundStored}, withAlias(content(entity, 6, "c"), a), notFound(alias, 7))
	b.wantSnapshot(entity, "b", 5, 5, 5, 4)

	// The batch has a write of unchanged content with the current alias, and a write with an outdated
	// alias. The result of the first one must be Touched.
	b.write(one(store.Changed), content(alias, 8, "C"))
	a = b.aliasState()
	other := schemas.Entity{Source: entity.Source, Facet: "other", Key: entity.Key}
	outdated := a
	outdated.Hash = store.Hash{9}
	b.write([]store.Result{store.Touched, store.BaseMissing}, withAlias(content(entity, 9, "b"), a), withAlias(content(other, 9, "d"), outdated))
	b.write([]store.Result{store.Touched, store.Changed}, withAlias(content(entity, 10, "b"), a), withAlias(content(other, 10, "d"), a))
}

func testAliasNotFound(b suite) {
	w := notFound(entity, 2)
	w.AliasNotFound = true
	b.write(one(store.NotFoundStored), w)
	if s := b.get(entity); !s.NotFound || !s.AliasNotFound {
		b.Errorf("state after a not-found result of the alias: got %+v, want AliasNotFound", s.State)
	}
	b.write(one(store.Changed), content(entity, 3, "a"))
	if s := b.get(entity); s.AliasNotFound {
		b.Error("state after content: got AliasNotFound, want not")
	}
	b.write(one(store.NotFoundStored), notFound(entity, 4))
	if s := b.get(entity); !s.NotFound || s.AliasNotFound {
		b.Errorf("state after a not-found result of the entity: got %+v, want NotFound and not AliasNotFound", s.State)
	}
}

// waitingFor returns the status of an entity that waits for its alias.
func waitingFor(e schemas.Entity, n int64) store.Status {
	s := failing(e, n)
	s.Reason, s.Until, s.DeadAlias = schemas.HoldAlias, at(1000), fmt.Sprint("hash ", n)
	return s
}

func testAliasWakes(b suite) {
	other := schemas.Entity{Source: entity.Source, Facet: entity.Facet, Key: "other"}
	failed := failing(schemas.Entity{Source: entity.Source, Facet: "failed", Key: entity.Key}, 1)
	waiting := waitingFor(entity, 1)
	waiting.Aliases, waiting.AliasFailures = []store.State{{Entity: alias}}, []int64{0}
	b.fail(waiting, waitingFor(other, 1), failed)
	users := []string{entity.Facet, "failed", "none"}
	wake := content(alias, 10, "A")
	wake.AliasUsers = users
	b.write(one(store.Changed), wake)
	woken := waitingFor(entity, 1)
	woken.Until = at(10)
	b.hasStatus(woken, waitingFor(other, 1), failed)

	later := waitingFor(entity, 11)
	later.Since = woken.Since
	b.fail(later)
	outdated := wake
	outdated.Version = 9
	b.write(one(store.Superseded), outdated) // a write of the alias that is not stored must not make the retry due
	b.hasStatus(later)
	gone := notFound(alias, 12)
	gone.AliasUsers = users
	b.write(one(store.NotFoundStored), gone)
	later.Until = at(12)
	b.hasStatus(later)

	again := waitingFor(entity, 13)
	again.Since = woken.Since
	b.fail(again)
	aliasFails := failing(alias, 14)
	aliasFails.AliasUsers = users
	b.fail(aliasFails)
	again.Until = at(14)
	b.hasStatus(again)
}

// testAliasRecheck: the alias, or a failure of the alias, is stored before the entity begins to wait
// for the alias.
func testAliasRecheck(b suite) {
	b.write(one(store.Changed), content(alias, 5, "A"))
	b.fail(failing(alias, 7))
	n := int64(10)
	for _, c := range []struct {
		snapshot, failure int64 // the versions that the worker has read
		due               bool
	}{{5, 7, false}, {4, 7, true}, {5, 6, true}, {0, 0, true}} {
		waiting := waitingFor(entity, n)
		waiting.Aliases, waiting.AliasFailures = []store.State{{Entity: alias, Version: c.snapshot}}, []int64{c.failure}
		for range 2 { // a repeated write must not end the wake-up
			b.fail(waiting)
			if due := b.status(entity).Until.Equal(waiting.UpdatedAt); due != c.due {
				b.Errorf("wait that has read versions %d and %d: got due %v, want %v", c.snapshot, c.failure, due, c.due)
			}
		}
		n++
	}
}

// testAliasRace stores an alias while the entity that needs it begins to wait. Either the write of the
// wait finds the alias, or the alias makes the retry due.
func testAliasRace(b suite) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for n := range 100 {
		e := schemas.Entity{Source: entity.Source, Facet: entity.Facet, Key: fmt.Sprint("race-", n)}
		a := schemas.Entity{Source: entity.Source, Facet: "id", Key: e.Key}
		wake := content(a, 2, "A")
		wake.AliasUsers = []string{e.Facet}
		waiting := waitingFor(e, 1)
		waiting.Aliases, waiting.AliasFailures = []store.State{{Entity: a}}, []int64{0}
		first, yields := rng.IntN(2), rng.IntN(2000)
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				for i == first && yields > 0 { // so that the goroutines interleave in different ways
					runtime.Gosched()
					yields--
				}
				var err error
				if i == 0 {
					_, err = b.store.Write(b.Context(), []store.Write{wake})
				} else {
					err = b.store.WriteFailure(b.Context(), waiting, nil)
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		if b.Failed() {
			return
		}
		if until := b.status(e).Until; !until.Equal(at(2)) && !until.Equal(waiting.UpdatedAt) {
			b.Fatalf("seed %d, race %d: the entity waits until %v, although its alias is stored", seed, n, until)
		}
	}
}

func testAliasTrigger(b suite) {
	b.finish()
	write := func(n int64, text string) store.Write {
		w := content(alias, n, text)
		w.Outbox = store.OutboxEvents{Triggers: []store.Trigger{{Facet: entity.Facet, OnReplace: true}}}
		return w
	}
	b.write(one(store.Changed), write(1, "A"))
	b.finish() // the first content is no replacement, so the trigger with OnReplace does not fire
	b.write(one(store.Changed), write(2, "B"))
	e := store.OutboxEvent{Entity: alias, Version: 2, At: at(2), Before: write(1, "A").Hash, After: write(2, "B").Hash}
	e.Triggers = []store.Trigger{{Facet: entity.Facet, OnReplace: true}}
	b.finish(e)
}
