package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// pausing has one trigger with a quiet time of 10 s and a MaxDelay of 25 s.
var pausing = store.OutboxEvents{Triggers: []store.Trigger{{Facet: "quiet", Quiet: 10 * time.Second, MaxDelay: 25 * time.Second, Backoff: time.Minute}}}

// testQuietTrigger: an entity changes again while the event of a trigger with a quiet time is
// undelivered. The event must then get a later due time, and the version and hash (After) of the
// new change.
func testQuietTrigger(b suite) {
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 100, "x")))
	b.wantNextOutboxTime(at(110))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 108, "y")))
	b.wantNextOutboxTime(at(118))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 117, "z")))
	// The event is due 25 s (MaxDelay) after the first change, not 10 s after the last change.
	b.wantNextOutboxTime(at(125))
	b.write(one(store.Touched), withOutbox(pausing, content(entity, 118, "z")))
	b.wantOutboxEvents(b.claimOutboxEvents(124, 10, 10))
	// The event has the hash before the first change and the hash after the last change.
	b.finish(outboxEvent(entity, 117, "", "z", pausing))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 130, "w")))
	b.wantNextOutboxTime(at(140)) // the next change starts a new quiet time
}

// testQuietBesideOthers: a trigger with a quiet time does not delay the message and other
// triggers of the same change.
func testQuietBesideOthers(b suite) {
	mixed := both
	mixed.Triggers = append([]store.Trigger{{Facet: "other", Quiet: 5 * time.Second}}, append(pausing.Triggers, both.Triggers...)...)
	b.write([]store.Result{store.Changed, store.Changed}, withOutbox(mixed, content(entity, 100, "x")), withOutbox(pausing, content(key("another"), 101, "x")))
	now := b.wantOutboxEvents(b.claimOutboxEvents(100, 1000, 10), outboxEvent(entity, 100, "", "x", both))
	b.wantNextOutboxTime(at(105))
	other := store.OutboxEvents{Triggers: mixed.Triggers[:1]}
	b.wantOutboxEvents(b.claimOutboxEvents(105, 1000, 10), outboxEvent(entity, 100, "", "x", other))
	b.wantOutboxEvents(b.claimOutboxEvents(111, 1000, 10), outboxEvent(entity, 100, "", "x", pausing), outboxEvent(key("another"), 101, "", "x", pausing))
	if err := b.store.DeleteOutboxEvents(b.Context(), now); err != nil {
		b.Fatal(err)
	}
}

// testQuietWhileClaimed: a change that is stored while the event of an earlier change is being
// delivered gets a new event.
func testQuietWhileClaimed(b suite) {
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 100, "x")))
	first := b.wantOutboxEvents(b.claimOutboxEvents(110, 60, 10), outboxEvent(entity, 100, "", "x", pausing))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 112, "y")))
	if err := b.store.DeleteOutboxEvents(b.Context(), first); err != nil {
		b.Fatal(err)
	}
	b.wantNextOutboxTime(at(122))
	b.finish(outboxEvent(entity, 112, "", "y", pausing))
}

// testQuietWhileClaimedLast: an event is being delivered because its MaxDelay has passed. A change that
// is stored meanwhile must begin a new period. Otherwise each further change would be due at once.
func testQuietWhileClaimedLast(b suite) {
	for _, n := range []int64{100, 108, 117} {
		b.write(one(store.Changed), withOutbox(pausing, content(entity, n, fmt.Sprint(n))))
	}
	b.wantOutboxEvents(b.claimOutboxEvents(125, 60, 10), outboxEvent(entity, 117, "", "117", pausing))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 126, "126")))
	b.wantNextOutboxTime(at(136))
	for _, n := range []int64{135, 144} {
		b.write(one(store.Changed), withOutbox(pausing, content(entity, n, fmt.Sprint(n))))
	}
	b.wantNextOutboxTime(at(151)) // 25 s (MaxDelay) after the first change of the new period
}

// delayed returns a write whose only outbox event refreshes the entity itself, after a quiet time of 10 s and
// a MaxDelay of 25 s.
func delayed(e schemas.Entity, n int64, lane schemas.Lane) store.Write {
	return store.Write{Entity: e, CheckedAt: at(n), Outbox: store.OutboxEvents{Triggers: []store.Trigger{
		{Facet: e.Facet, Quiet: 10 * time.Second, MaxDelay: 25 * time.Second, Lane: lane},
	}}}
}

// delayedEvent returns the outbox event of a write of delayed, without an ID.
func delayedEvent(w store.Write) store.OutboxEvent {
	return store.OutboxEvent{Entity: w.Entity, At: w.CheckedAt, OutboxEvents: w.Outbox}
}

func (b suite) delay(all ...store.Write) {
	b.Helper()
	if err := b.store.WriteOutbox(b.Context(), all); err != nil {
		b.Fatal(err)
	}
}

func testWriteOutbox(b suite) {
	b.delay()
	b.wantNextOutboxTime(time.Time{})
	low, high := delayed(entity, 100, ""), delayed(key("high"), 101, schemas.High)
	b.delay(high, low)
	b.wantNextOutboxTime(at(110))
	b.delay(delayed(entity, 108, ""))
	b.delay(delayed(entity, 117, ""))
	last := delayed(entity, 124, "")
	b.delay(last)
	b.finish(delayedEvent(high), delayedEvent(last)) // the request of entity is due at 125: MaxDelay (25 s) after its first write
	// A change of the entity with a trigger for another facet is stored as a separate event.
	b.delay(delayed(entity, 200, ""))
	b.write(one(store.Changed), withOutbox(pausing, content(entity, 201, "x")))
	b.finish(delayedEvent(delayed(entity, 200, "")), outboxEvent(entity, 201, "", "x", pausing))
	// A write that is stored while the earlier event is being delivered is stored as a separate event.
	b.delay(delayed(entity, 300, ""))
	first := b.wantOutboxEvents(b.claimOutboxEvents(310, 60, 10), delayedEvent(delayed(entity, 300, "")))
	b.delay(delayed(entity, 311, ""))
	if err := b.store.DeleteOutboxEvents(b.Context(), first); err != nil {
		b.Fatal(err)
	}
	b.wantNextOutboxTime(at(321))
	b.deleteAll(true, entity, 400)
	b.finish()
}

// testWriteOutboxRace: concurrent calls of WriteOutbox for the same entities must not fail, and no
// event may be lost.
func testWriteOutboxRace(b suite) {
	var all []store.Write
	for n := range 20 {
		all = append(all, delayed(key(fmt.Sprint(n)), 100, ""))
	}
	var calls sync.WaitGroup
	for n := range uint64(8) {
		rng := rand.New(rand.NewPCG(n, n))
		calls.Go(func() {
			for range 10 {
				some := make([]store.Write, 0, len(all))
				for _, i := range rng.Perm(len(all)) {
					some = append(some, all[i])
				}
				if err := b.store.WriteOutbox(b.Context(), some); err != nil {
					b.Error(err)
				}
			}
		})
	}
	calls.Wait()
	if got := b.claimOutboxEvents(1000, 60, 100); len(got) != len(all) {
		b.Errorf("delayed requests: got %d, want %d", len(got), len(all))
	}
}

// testQuietDeleted: deleting an entity deletes two kinds of undelivered events of triggers with a
// quiet time: events that changes of the entity caused, and events that would refresh the entity.
func testQuietDeleted(b suite) {
	target := schemas.Entity{Source: entity.Source, Facet: "quiet", Key: entity.Key}
	for n, deleted := range []schemas.Entity{entity, target} {
		at := int64(100 * (n + 1))
		b.write(one(store.Changed), withOutbox(pausing, content(entity, at, fmt.Sprint(at))))
		b.write(one(store.Changed), withOutbox(pausing, content(key("other"), at, fmt.Sprint(at))))
		b.deleteAll(true, deleted, at)
		b.finish(outboxEvent(key("other"), at, map[int64]string{200: "100"}[at], fmt.Sprint(at), pausing))
	}
}

// testQuietRace stores changes of few entities while other goroutines claim and delete events. The
// event of each entity's last change must be claimed.
func testQuietRace(b suite) {
	const writers, entities, rounds = 4, 6, 40
	seed := time.Now().UnixNano()
	b.Logf("seed %d", seed)
	var mu sync.Mutex
	stored, claimed := map[schemas.Entity]int64{}, map[schemas.Entity]int64{}
	var writing, claiming sync.WaitGroup
	for w := range int64(writers) {
		rng := rand.New(rand.NewPCG(uint64(seed), uint64(w)))
		writing.Go(func() {
			for n := range int64(rounds) {
				version := 1000 + n*writers + w
				var writes []store.Write
				for _, i := range rng.Perm(entities)[:3] {
					writes = append(writes, withOutbox(pausing, content(key(fmt.Sprint(i)), version, fmt.Sprint(version))))
				}
				results, err := b.store.Write(b.Context(), writes)
				if err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				for i, r := range results {
					if r == store.Changed {
						stored[writes[i].Entity] = max(stored[writes[i].Entity], version)
					}
				}
				mu.Unlock()
			}
		})
	}
	stop := make(chan struct{})
	claim := func() {
		all, err := b.store.ClaimOutboxEvents(b.Context(), entity.Source, at(1_000_000), time.Nanosecond, 4)
		if err != nil {
			b.Error(err)
			return
		}
		var ids []int64
		mu.Lock()
		for _, e := range all {
			claimed[e.Entity] = max(claimed[e.Entity], e.Version)
			ids = append(ids, e.ID)
		}
		mu.Unlock()
		if err := b.store.DeleteOutboxEvents(b.Context(), ids); err != nil {
			b.Error(err)
		}
	}
	for range 2 {
		claiming.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					claim()
				}
			}
		})
	}
	writing.Wait()
	close(stop)
	claiming.Wait()
	for range entities {
		claim()
	}
	for e, version := range stored {
		if claimed[e] != version {
			b.Errorf("last claimed version of %s: got %d, want %d", e, claimed[e], version)
		}
	}
	b.wantNextOutboxTime(time.Time{})
}
