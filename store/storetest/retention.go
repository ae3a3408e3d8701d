package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// expire calls DeleteExpired until it has examined the whole facet, and returns the number of
// deleted rows.
func (b suite) expire(before int64, limit int) (deleted int) {
	b.Helper()
	for {
		n, done, err := b.store.DeleteExpired(b.Context(), entity.Source, entity.Facet, at(before), at(before), limit)
		if err != nil || n > limit {
			b.Fatal(n, err)
		}
		if deleted += n; done {
			return deleted
		}
	}
}

// storedKeys returns the keys of the given entities that have a stored state.
func (b suite) storedKeys(of ...schemas.Entity) (keys []string) {
	b.Helper()
	for _, e := range of {
		if _, err := b.store.Get(b.Context(), e); err == nil {
			keys = append(keys, e.Key)
		} else if !errors.Is(err, store.ErrNotFound) {
			b.Fatal(err)
		}
	}
	return keys
}

func testExpired(b suite) {
	if n := b.expire(1000, 5); n != 0 {
		b.Errorf("rows deleted from an empty store: %d", n)
	}
	old, young, looked, confirmed, touched, gone, seen := key("old"), key("young"), key("looked"), key("confirmed"), key("touched"), key("gone"), key("seen")
	all := []schemas.Entity{confirmed, gone, looked, old, seen, touched, young}
	b.write(slices.Repeat([]store.Result{store.Changed}, 5),
		content(old, 10, "x"), content(young, 100, "x"), content(looked, 10, "x"), content(confirmed, 10, "x"), content(touched, 10, "x"))
	b.write([]store.Result{store.NotFoundStored, store.NotFoundStored, store.NotFoundStored}, notFound(gone, 10), notFound(seen, 100), notFound(looked, 100))
	b.write([]store.Result{store.Touched, store.Touched}, notModified(confirmed, 100, "x"), content(touched, 100, "x"))
	other := []schemas.Entity{{Source: entity.Source, Facet: "other", Key: "old"}, {Source: "nexo", Facet: entity.Facet, Key: "old"}}
	b.write([]store.Result{store.Changed, store.Changed}, content(other[0], 10, "x"), content(other[1], 10, "x"))
	s := failing(old, 12)
	b.fail(s)
	b.deadLetter(newDeadLetter(old, 3))
	b.register(1, registered(old, 5))

	if n := b.expire(10, 2); n != 0 || len(b.storedKeys(all...)) != len(all) {
		b.Errorf("rows deleted at their own time: %d", n)
	}
	// A later check without content does not extend the retention of the content.
	if n, kept := b.expire(11, 2), b.storedKeys(all...); n != 4 || !slices.Equal(kept, []string{"seen", "touched", "young"}) {
		b.Errorf("deleted %d, kept %q", n, kept)
	}
	if kept := b.storedKeys(other...); len(kept) != 2 {
		b.Errorf("kept of other facets and sources: %q", kept)
	}
	b.hasStatus(s)
	if len(b.deadLetters(entity.Source, true, 9)) != 1 {
		b.Error("the dead letter was deleted")
	}
	b.wantEntities(prefetched.Filter{}, registered(old, 5))
	b.write([]store.Result{store.BaseMissing, store.Changed}, notModified(confirmed, 200, "x"), content(old, 200, "y"))
	if n := b.expire(1000, 100); n != 4 || len(b.storedKeys(all...)) != 0 {
		b.Errorf("deleted %d", n)
	}
}

// testExpiredWithoutContent deletes old not-found results, and old statuses of entities without a
// snapshot. It must keep content, and statuses of entities with content.
func testExpiredWithoutContent(b suite) {
	content1, gone, seen := key("content"), key("gone"), key("seen")
	b.write([]store.Result{store.Changed}, content(content1, 10, "x"))
	b.write([]store.Result{store.NotFoundStored, store.NotFoundStored}, notFound(gone, 10), notFound(seen, 100))
	for done := false; !done; {
		var err error
		if _, done, err = b.store.DeleteExpired(b.Context(), entity.Source, entity.Facet, time.Time{}, at(50), 2); err != nil {
			b.Fatal(err)
		}
	}
	if got := b.storedKeys(content1, gone, seen); !slices.Equal(got, []string{"content", "seen"}) {
		b.Errorf("kept: got %q, want the content and the recent not-found result", got)
	}

	state := func(e schemas.Entity, n int64, s store.StatusState) store.Status {
		f := failing(e, n)
		f.State = s
		if s == store.Suspended {
			f.Until = time.Time{}
		}
		return f
	}
	due := state(key("waits"), 10, store.Retrying) // must be kept, because the retry of this status is due later
	due.Until = at(1000)
	other := state(schemas.Entity{Source: entity.Source, Facet: "other", Key: "failed"}, 10, store.Failed)
	kept := []store.Status{state(content1, 20, store.Failed), due, state(key("young"), 60, store.Failed), other}
	old := []store.Status{state(key("failed"), 10, store.Failed), state(key("suspended"), 10, store.Suspended), state(key("left over"), 10, store.Retrying)}
	b.fail(append(slices.Clone(old), kept...)...)
	deleted := 0
	for done := false; !done; {
		n, end, err := b.store.DeleteOldStatuses(b.Context(), entity.Source, entity.Facet, at(50), 2)
		if err != nil || n > 2 {
			b.Fatal(n, err)
		}
		deleted, done = deleted+n, end
	}
	if deleted != len(old) {
		b.Errorf("statuses deleted: got %d, want %d", deleted, len(old))
	}
	for _, s := range old {
		b.hasNoStatus(s.Entity)
	}
	for _, s := range kept {
		b.hasStatus(s)
	}
}

// testExpiredRace deletes expired rows while a writer stores the same entities again. The last
// write of each entity must be stored with state and payload.
func testExpiredRace(b suite) {
	const entities, rounds = 40, 12
	write := func(round int64) {
		var writes []store.Write
		for n := range entities {
			writes = append(writes, content(key(fmt.Sprintf("%03d", n)), round, fmt.Sprint(round)))
		}
		if _, err := b.store.Write(b.Context(), writes); err != nil {
			b.Error(err)
		}
	}
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			for round := range int64(rounds) {
				if n == 0 {
					write(1 + 2*round)
					continue
				}
				for range 2 * entities / 7 {
					if _, _, err := b.store.DeleteExpired(b.Context(), entity.Source, entity.Facet, at(2+2*round), at(2+2*round), 7); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	write(1000)
	for n := range entities {
		b.wantSnapshot(key(fmt.Sprintf("%03d", n)), "1000", 1000, 1000, 1000, 1000)
	}
}
