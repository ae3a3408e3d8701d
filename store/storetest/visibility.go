package storetest

import (
	"fmt"
	"sync"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// within returns the write with the given visibility.
func within(visibility string, w store.Write) store.Write {
	w.Visibility = visibility
	return w
}

// readStates returns the state of the entity three times: as read by Get, by GetAll and by States.
func (b suite) readStates() (get, getAll, states store.State) {
	b.Helper()
	all, err := b.store.GetAll(b.Context(), []schemas.Entity{entity})
	if err != nil {
		b.Fatal(err)
	}
	found, err := b.store.States(b.Context(), []schemas.Entity{entity})
	if err != nil {
		b.Fatal(err)
	}
	return b.get(entity).State, all[0].State, found[0]
}

// seenBy fails the test unless Get, GetAll and States all return the visibility for the entity.
func (b suite) seenBy(visibility string) {
	b.Helper()
	if one, all, states := b.readStates(); one.Visibility != visibility || all.Visibility != visibility || states.Visibility != visibility {
		b.Fatalf("visibility: Get %q, GetAll %q, States %q, want %q", one.Visibility, all.Visibility, states.Visibility, visibility)
	}
}

func testVisibility(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.seenBy("")
	b.write(one(store.Changed), within("partner", content(entity, 6, "y")))
	b.seenBy("partner")
	// A superseded write does not change the visibility.
	b.write(one(store.Superseded), content(entity, 5, "y"))
	b.write(one(store.Superseded), notFound(entity, 5))
	b.write(one(store.BaseMissing), notModified(entity, 7, "z"))
	b.seenBy("partner")
	// If unchanged content is fetched with another visibility, it gets the new visibility, even if
	// every reader may then see it.
	b.write(one(store.Touched), b.withoutPayload(within("staff", content(entity, 8, "y"))))
	b.seenBy("staff")
	b.write(one(store.Touched), content(entity, 9, "y"))
	b.seenBy("")
	// A NotModified may restrict the visibility, but never extend it to more readers.
	b.write(one(store.Touched), within("partner", notModified(entity, 10, "y")))
	b.seenBy("partner")
	b.write(one(store.Touched), within("partner", notModified(entity, 11, "y")))
	b.write(one(store.BaseMissing), notModified(entity, 12, "y"))
	b.write(one(store.BaseMissing), within("staff", notModified(entity, 12, "y")))
	b.seenBy("partner")
	b.wantSnapshot(entity, "y", 11, 9, 11, 6)
	other := within("staff", content(entity, 12, "z"))
	other.ExtractVersion = 8
	b.write(one(store.Rewritten), other)
	b.seenBy("staff")
}

func testVisibilityOfNotFound(b suite) {
	b.write(one(store.NotFoundStored), within("partner", notFound(entity, 4)))
	b.seenBy("partner")
	b.write(one(store.NotFoundStored), notFound(entity, 5))
	b.seenBy("")
	b.write(one(store.Changed), within("partner", content(entity, 6, "x")))
	b.write(one(store.NotFoundStored), within("partner", notFound(entity, 7)))
	if s := b.get(entity); !s.HasContent() || s.Payload == nil {
		b.Fatalf("a not-found result of the same visibility deleted the content: %+v", s.State)
	}
	for n, visibility := range []string{"", "staff", "", "partner"} {
		at := int64(10 * (n + 1))
		b.write(one(store.NotFoundStored), within(visibility, notFound(entity, at)))
		b.seenBy(visibility)
		want := store.State{Entity: entity, Version: at, CheckedAt: b.get(entity).CheckedAt, NotFound: true, Visibility: visibility}
		if s := b.get(entity); s.State != want || s.Payload != nil {
			b.Fatalf("content of another visibility was kept: %+v, %d bytes", s.State, len(s.Payload))
		}
		b.write(one(store.BaseMissing), within(visibility, notModified(entity, at+1, "x")))
		b.write(one(store.Changed), within("partner", content(entity, at+2, "x")))
		b.wantSnapshot(entity, "x", at+2, at+2, at+2, at+2)
		b.seenBy("partner")
		// Give the stored content another visibility than the not-found result of the next iteration
		// has.
		b.write(one(store.Touched), within("other", content(entity, at+3, "x")))
	}
}

// testVisibilityRace stores fetches with several visibilities concurrently. Content must never be
// stored with the visibility of another fetch.
func testVisibilityRace(b suite) {
	const writers, rounds = 6, 25
	var wg sync.WaitGroup
	for writer := range writers {
		wg.Go(func() {
			visibility := []string{"", "partner", "staff"}[writer%3]
			for round := range rounds {
				n := int64(1 + round*writers + writer)
				w := content(entity, n, "of "+visibility)
				if round%4 == 3 {
					w = notFound(entity, n)
				}
				if _, err := b.store.Write(b.Context(), []store.Write{within(visibility, w)}); err != nil {
					b.Error(err)
				}
				s, err := b.store.Get(b.Context(), entity)
				if err != nil {
					b.Error(err)
					continue
				}
				if !s.HasContent() {
					continue
				}
				if json, err := s.Decode(nil); err != nil || string(json) != fmt.Sprintf(`{"doc":"of %s"}`, s.Visibility) {
					b.Errorf("content %s, %v has visibility %q", json, err, s.Visibility)
				}
			}
		})
	}
	wg.Wait()
}
