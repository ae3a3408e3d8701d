package storetest

import (
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

func testDelete(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	for range 2 {
		if err := b.store.Delete(b.Context(), entity); err != nil {
			b.Fatal(err)
		}
		testUnknown(b)
	}
	b.write(one(store.Changed), content(entity, 1, "x"))
	b.wantSnapshot(entity, "x", 1, 1, 1, 1)
}

// deletion returns the audit entry of the deletion of an entity at the time at(n).
func deletion(e schemas.Entity, n int64) store.AuditEntry {
	return store.AuditEntry{
		At: at(n), Actor: "somebody", Action: "delete", Source: e.Source,
		Before: []byte(`{"key": "é"}`), After: []byte("{}"), Note: "asked for",
	}
}

func (b suite) deleteAll(want bool, e schemas.Entity, n int64) {
	b.Helper()
	if was, err := b.store.DeleteSnapshot(b.Context(), e, deletion(e, n)); was != want || err != nil {
		b.Fatalf("DeleteSnapshot of %s: got %v, %v, want %v", e, was, err, want)
	}
}

// wantAudit fails the test unless the audit log has these entries, newest first.
func (b suite) wantAudit(want ...store.AuditEntry) {
	b.Helper()
	all := b.audit(100)
	for i := range all {
		all[i].ID = 0
	}
	if len(all) != len(want) || (len(want) > 0 && !reflect.DeepEqual(all, want)) {
		b.Fatalf("audit: got\n%+v, want\n%+v", all, want)
	}
}

func testDeleteSnapshot(b suite) {
	b.deleteAll(false, entity, 1)
	others := []schemas.Entity{key("b"), {Source: entity.Source, Facet: "other", Key: entity.Key}, {Source: "nexo", Facet: entity.Facet, Key: entity.Key}}
	for _, e := range append(others, entity) {
		b.write(one(store.Changed), withOutbox(published, content(e, 5, "x")))
		b.fail(failing(e, 6))
		b.register(1, registered(e, 7))
	}
	b.deadLetter(newDeadLetter(entity, 3))
	b.wantAudit()

	b.deleteAll(true, entity, 10)
	testUnknown(b)
	b.hasNoStatus(entity)
	b.wantEntities(prefetched.Filter{}, registered(others[2], 7), registered(others[0], 7), registered(others[1], 7))
	for _, e := range others {
		b.wantSnapshot(e, "x", 5, 5, 5, 5)
		b.hasStatus(failing(e, 6))
	}
	if len(b.deadLetters(entity.Source, true, 9)) != 1 {
		b.Error("the dead letter was deleted")
	}
	b.wantAudit(deletion(entity, 10))
	b.deleteAll(false, entity, 11)
	b.wantAudit(deletion(entity, 10))
	b.finish(outboxEvent(others[0], 5, "", "x", published), outboxEvent(others[1], 5, "", "x", published), outboxEvent(entity, 5, "", "x", published))

	b.write(one(store.Changed), withOutbox(published, content(entity, 4, "x")))
	b.finish(outboxEvent(entity, 4, "", "x", published)) // a write after the deletion causes an event again
	b.deleteAll(true, entity, 20)
	b.write(one(store.NotFoundStored), notFound(entity, 4))
	b.deleteAll(true, entity, 21)
	b.fail(failing(entity, 4))
	b.deleteAll(true, entity, 22)
	b.register(1, registered(entity, 4))
	b.deleteAll(true, entity, 23)
	b.deleteAll(false, entity, 24)
	b.wantAudit(deletion(entity, 23), deletion(entity, 22), deletion(entity, 21), deletion(entity, 20), deletion(entity, 10))
}

// testDeleteRace runs every operation on one entity while other goroutines delete the entity. No
// call may fail, and a stored state must always have its payload.
func testDeleteRace(b suite) {
	const rounds = 25
	var wg sync.WaitGroup
	repeat := func(do func(n int64) error) {
		wg.Go(func() {
			for n := range int64(rounds) {
				if err := do(n + 1); err != nil {
					b.Error(err)
				}
			}
		})
	}
	var deleted atomic.Int64
	for range 2 {
		repeat(func(n int64) error {
			was, err := b.store.DeleteSnapshot(b.Context(), entity, deletion(entity, n))
			if was {
				deleted.Add(1)
			}
			return err
		})
		repeat(func(n int64) error {
			_, err := b.store.Write(b.Context(), []store.Write{withOutbox(published, content(entity, n, "x"))})
			return err
		})
		repeat(func(n int64) error {
			_, err := b.store.RegisterEntities(b.Context(), []prefetched.RegisteredEntity{registered(entity, n)})
			return err
		})
	}
	repeat(func(n int64) error { return b.store.WriteFailure(b.Context(), failing(entity, n+1), nil) })
	repeat(func(int64) error {
		_, err := b.store.ClaimEntities(b.Context(), entity.Source, at(1000), 9, time.Minute, nil, func(c prefetched.Candidate) prefetched.Decision {
			return prefetched.Decision{Due: c.Due, Enqueue: true}
		})
		return err
	})
	repeat(func(int64) error {
		all, err := b.store.GetAll(b.Context(), []schemas.Entity{entity})
		if err == nil && all[0].HasContent() != (len(all[0].Payload) > 0) {
			b.Errorf("state %+v has %d bytes of payload", all[0].State, len(all[0].Payload))
		}
		return err
	})
	wg.Wait()
	if entries := b.audit(10 * rounds); int64(len(entries)) != deleted.Load() {
		b.Errorf("%d deletions, but %d audit entries", deleted.Load(), len(entries))
	}
}

func testWriteAudit(b suite) {
	first, second := deletion(entity, 1), deletion(schemas.Entity{}, 2)
	second.Note = ""
	for _, entry := range []store.AuditEntry{first, second} {
		if err := b.store.WriteAudit(b.Context(), entry); err != nil {
			b.Fatal(err)
		}
	}
	b.wantAudit(second, first)
}
