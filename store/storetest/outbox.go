package storetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// Outbox has the methods of a store with which a relay claims, marks and deletes outbox events.
type Outbox interface {
	// ClaimOutboxEvents claims at most `limit` due events, earliest first, for the duration of the
	// lease. During the lease no other call claims these events.
	ClaimOutboxEvents(ctx context.Context, source string, now time.Time, lease time.Duration, limit int) ([]store.OutboxEvent, error)
	// NextOutboxTime returns the time at which the next event can be claimed; zero if there is no
	// event.
	NextOutboxTime(ctx context.Context, source string) (time.Time, error)
	// MarkChangesPublished records that the change messages of these events were published.
	MarkChangesPublished(ctx context.Context, ids []int64) error
	// DeleteOutboxEvents deletes delivered events. It postpones events that request a page instead. It
	// ignores unknown IDs.
	DeleteOutboxEvents(ctx context.Context, ids []int64) error
	// WriteOutbox stores only the outbox events of the writes. The writes must be of different
	// entities.
	WriteOutbox(ctx context.Context, writes []store.Write) error
	Backlogs
}

var (
	published = store.OutboxEvents{PublishChange: true}
	follows   = store.OutboxEvents{Triggers: []store.Trigger{{Facet: "<가>'\"", Backoff: 90*time.Minute + time.Microsecond, Params: map[string]string{"encCsNo": "가\""}}, {Facet: "b"}}}
	both      = store.OutboxEvents{PublishChange: true, Triggers: []store.Trigger{{Facet: "c", Backoff: time.Second}}}
)

// withOutbox returns the write with outbox events.
func withOutbox(events store.OutboxEvents, w store.Write) store.Write {
	w.Outbox = events
	return w
}

// hash returns the hash of the content with the text; zero for an empty text.
func hash(text string) (h store.Hash) {
	if text != "" {
		h = sha256.Sum256([]byte(`{"doc":"` + text + `"}`))
	}
	return h
}

// outboxEvent returns the event of the change with version n from one text to another, without an
// ID.
func outboxEvent(e schemas.Entity, n int64, before, after string, events store.OutboxEvents) store.OutboxEvent {
	return store.OutboxEvent{Entity: e, Version: n, At: at(n), Before: hash(before), After: hash(after), OutboxEvents: events}
}

func (b suite) claimOutboxEvents(now, lease int64, limit int) []store.OutboxEvent {
	b.Helper()
	claimed, err := b.store.ClaimOutboxEvents(b.Context(), entity.Source, at(now), time.Duration(lease)*time.Second, limit)
	if err != nil || len(claimed) > limit {
		b.Fatal(len(claimed), err)
	}
	return claimed
}

// wantOutboxEvents fails the test unless got has these events, in this order. It returns their
// IDs.
func (b suite) wantOutboxEvents(got []store.OutboxEvent, want ...store.OutboxEvent) (ids []int64) {
	b.Helper()
	for i := range got {
		if got[i].ID == 0 || slices.Contains(ids, got[i].ID) {
			b.Fatalf("IDs do not increase: %+v", got)
		}
		ids, got[i].ID = append(ids, got[i].ID), 0
	}
	if len(got) != len(want) || (len(want) > 0 && !reflect.DeepEqual(got, want)) {
		b.Fatalf("outbox events: got\n%+v, want\n%+v", got, want)
	}
	return ids
}

// finish claims and deletes all events, and fails the test unless they are the given events.
func (b suite) finish(want ...store.OutboxEvent) {
	b.Helper()
	if err := b.store.DeleteOutboxEvents(b.Context(), b.wantOutboxEvents(b.claimOutboxEvents(1_000_000, 60, 1000), want...)); err != nil {
		b.Fatal(err)
	}
	b.wantNextOutboxTime(time.Time{})
}

func (b suite) wantNextOutboxTime(want time.Time) {
	b.Helper()
	if got, err := b.store.NextOutboxTime(b.Context(), entity.Source); err != nil || !got.Equal(want) {
		b.Fatalf("NextOutboxTime: got %v, %v, want %v", got, err, want)
	}
}

func testOutbox(b suite) {
	b.finish()
	b.write(one(store.Changed), withOutbox(published, content(entity, 5, "x")))
	b.finish(outboxEvent(entity, 5, "", "x", published))
	b.write(one(store.Touched), withOutbox(published, content(entity, 5, "x"))) // repeating the write causes no second event
	b.write(one(store.Touched), withOutbox(published, content(entity, 6, "x")))
	b.write(one(store.Touched), withOutbox(published, notModified(entity, 7, "x")))
	b.write(one(store.BaseMissing), withOutbox(published, notModified(entity, 8, "y")))
	b.write(one(store.Superseded), withOutbox(published, content(entity, 4, "y")))
	b.write(one(store.NotFoundStored), withOutbox(published, notFound(entity, 8)))
	b.write(one(store.NotFoundStored), withOutbox(published, notFound(key("gone"), 8)))
	rewritten := content(entity, 9, "y")
	rewritten.ExtractVersion = 8
	b.write(one(store.Rewritten), withOutbox(published, rewritten))
	b.finish()

	again := content(entity, 10, "z")
	again.ExtractVersion = 8
	b.write([]store.Result{store.Changed, store.Changed, store.Changed, store.Superseded, store.Superseded, store.Changed},
		withOutbox(follows, again), withOutbox(both, content(key("gone"), 11, "x")), content(key("quiet"), 12, "x"),
		withOutbox(published, content(entity, 9, "w")), withOutbox(published, content(key("gone"), 10, "y")), withOutbox(published, content(key("new"), 9, "x")))
	b.finish(outboxEvent(key("new"), 9, "", "x", published), outboxEvent(entity, 10, "y", "z", follows), outboxEvent(key("gone"), 11, "", "x", both))
	b.write(one(store.Changed), content(key("gone"), 12, "y"))
	b.write(one(store.NotFoundStored), notFound(key("gone"), 13))
	b.write(one(store.Changed), withOutbox(published, content(key("gone"), 14, "x")))
	b.finish(outboxEvent(key("gone"), 14, "y", "x", published))
	if s := b.get(key("gone")); s.Version != 14 || s.NotFound {
		b.Errorf("state: got %+v", s.State)
	}
}

// testOutboxOfFailedWrite: if one write of a batch fails, the events of the whole batch are rolled
// back.
func testOutboxOfFailedWrite(b suite) {
	b.write(one(store.Changed), content(key("a"), 1, "x"))
	failing := withOutbox(published, content(key("c"), 5, "x"))
	failing.Payload = func() (store.Payload, error) { return store.Payload{}, errors.New("no memory") }
	for range 2 {
		if _, err := b.store.Write(b.Context(), []store.Write{
			withOutbox(published, content(key("a"), 5, "y")), withOutbox(published, content(key("b"), 5, "x")), failing,
		}); err == nil {
			b.Fatal("the batch was written")
		}
	}
	b.finish()
	if kept := b.storedKeys(key("a"), key("b"), key("c")); !slices.Equal(kept, []string{"a"}) {
		b.Errorf("stored keys: got %q", kept)
	}
	b.write([]store.Result{store.Changed, store.Changed}, withOutbox(published, content(key("a"), 6, "y")), withOutbox(published, content(key("b"), 6, "x")))
	b.finish(outboxEvent(key("a"), 6, "x", "y", published), outboxEvent(key("b"), 6, "", "x", published))
}

func testOutboxClaim(b suite) {
	b.wantNextOutboxTime(time.Time{})
	b.wantOutboxEvents(b.claimOutboxEvents(100, 10, 10))
	x, y, z := outboxEvent(key("z"), 10, "", "x", published), outboxEvent(key("y"), 20, "", "x", follows), outboxEvent(key("x"), 30, "", "x", both)
	other := schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: "a"}
	for _, e := range []store.OutboxEvent{y, z, outboxEvent(other, 5, "", "x", published), x} {
		b.write(one(store.Changed), withOutbox(e.OutboxEvents, content(e.Entity, e.Version, "x")))
	}
	b.wantNextOutboxTime(at(10))
	b.wantOutboxEvents(b.claimOutboxEvents(9, 10, 10))
	first := b.wantOutboxEvents(b.claimOutboxEvents(30, 100, 2), x, y)
	b.wantNextOutboxTime(at(30))
	b.wantOutboxEvents(b.claimOutboxEvents(30, 50, 10), z)
	b.wantNextOutboxTime(at(80))
	b.wantOutboxEvents(b.claimOutboxEvents(79, 10, 10))
	finish := func(ids ...int64) {
		b.Helper()
		if err := b.store.DeleteOutboxEvents(b.Context(), ids); err != nil {
			b.Fatal(err)
		}
	}
	finish()
	finish(first[0])
	finish(first[0], 1<<40, first[0])
	b.wantNextOutboxTime(at(80))
	// The lease of z ends at the time at(80), the lease of y at the time at(130). Both events can
	// be claimed again, in the order in which the leases end.
	last := b.wantOutboxEvents(b.claimOutboxEvents(130, 10, 10), z, y)
	if last[1] != first[1] {
		b.Errorf("ID of an event claimed again: got %[2]d, want %[1]d", first[1], last[1])
	}
	b.wantNextOutboxTime(at(140))
	finish(last...)
	b.finish()
}

// testOutboxClaimRace claims and deletes events concurrently, and deletes some IDs again that are
// already deleted. Each event must be claimed once.
func testOutboxClaimRace(b suite) {
	const claimants, rows = 6, 120
	var writes []store.Write
	for n := range int64(rows) {
		writes = append(writes, withOutbox(published, content(key(fmt.Sprint(n)), n+1, "x")))
	}
	if _, err := b.store.Write(b.Context(), writes); err != nil {
		b.Fatal(err)
	}
	var mu sync.Mutex
	claims := map[schemas.Entity]int{}
	count := func(claimed []store.OutboxEvent) (ids []int64) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range claimed {
			claims[e.Entity]++
			ids = append(ids, e.ID)
		}
		return ids
	}
	var wg sync.WaitGroup
	for range claimants {
		wg.Go(func() {
			var ids []int64
			for {
				claimed, err := b.store.ClaimOutboxEvents(b.Context(), entity.Source, at(rows), time.Hour, 7)
				if err != nil {
					b.Error(err)
				}
				if len(claimed) == 0 {
					return
				}
				ids = append(count(claimed), ids...)
				if err := b.store.DeleteOutboxEvents(b.Context(), ids); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	// Count the events that the calls above skipped, because another call had locked them.
	count(b.claimOutboxEvents(rows, 3600, rows))
	for e, n := range claims {
		if n != 1 {
			b.Errorf("%s: claimed %d times, want once", e, n)
		}
	}
	if len(claims) != rows {
		b.Errorf("events claimed: got %d, want %d", len(claims), rows)
	}
}

// testOutboxHashChain creates and changes few entities concurrently. The Before of each change
// must be the After of the entity's previous change. Each batch is either one write of any kind or
// several content writes. A batch of several kinds would lock its rows in several passes, and
// PostgreSQL would end some batches with a deadlock error.
func testOutboxHashChain(b suite) {
	const seeds, writers, rounds, keys = 6, 6, 8, 5
	for seed := range uint64(seeds) {
		var mu sync.Mutex
		changed := map[schemas.Entity][]int64{}
		var number atomic.Int64
		var wg sync.WaitGroup
		for writer := range uint64(writers) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, writer))
				for range rounds {
					var writes []store.Write
					for _, k := range rng.Perm(keys)[:1+rng.IntN(keys)] {
						e := schemas.Entity{Source: entity.Source, Facet: fmt.Sprint("f", seed), Key: fmt.Sprint(k)}
						n := number.Add(1)
						writes = append(writes, withOutbox(published, content(e, n, fmt.Sprint(n))))
					}
					if len(writes) == 1 {
						writes[0], _ = randomWrite(rng, writes[0].Entity, writes[0].Version)
						writes[0].ExtractVersion, writes[0].Outbox = 7, published // if the result is Rewritten, no event may be stored
					}
					results, err := b.store.Write(b.Context(), writes)
					if err != nil {
						b.Error(seed, err)
						return
					}
					mu.Lock()
					for i, r := range results {
						if r == store.Changed {
							changed[writes[i].Entity] = append(changed[writes[i].Entity], writes[i].Version)
						}
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		all := b.claimOutboxEvents(1_000_000, 60, 10_000)
		var ids []int64
		for _, e := range all {
			ids = append(ids, e.ID)
		}
		b.wantHashChain(seed, all, changed)
		if err := b.store.DeleteOutboxEvents(b.Context(), ids); err != nil {
			b.Fatal(err)
		}
	}
}

// wantHashChain fails the test unless there is one event for each changed version. The Before of
// each event must be the After of the entity's previous event.
func (b suite) wantHashChain(seed uint64, all []store.OutboxEvent, changed map[schemas.Entity][]int64) {
	b.Helper()
	of := map[schemas.Entity][]store.OutboxEvent{}
	for _, e := range all {
		of[e.Entity] = append(of[e.Entity], e)
	}
	for e, versions := range changed {
		slices.Sort(versions)
		events := of[e]
		slices.SortFunc(events, func(x, y store.OutboxEvent) int { return cmp.Compare(x.Version, y.Version) })
		var before store.Hash
		var id int64
		var got []int64
		for _, f := range events {
			got = append(got, f.Version)
			if f.Before != before || f.After == before || f.ID <= id || !f.At.Equal(at(f.Version)) {
				b.Errorf("seed %d, %s: event of version %d has Before %x and After %x, the one before has After %x (ID %d, before %d)", seed, e, f.Version, f.Before[:3], f.After[:3], before[:3], f.ID, id)
			}
			before, id = f.After, f.ID
		}
		if !slices.Equal(got, versions) {
			b.Errorf("seed %d, %s: versions with events: got %d, want %d", seed, e, got, versions)
		}
		if s := b.get(e); s.Hash != before {
			b.Errorf("seed %d, %s: stored hash %x, After of the last event %x", seed, e, s.Hash[:3], before[:3])
		}
		delete(of, e)
	}
	for e, events := range of {
		b.Errorf("seed %d, %s: %d events without a change", seed, e, len(events))
	}
}

func testMarkChangesPublished(b suite) {
	x, y := key("x"), key("y")
	b.write([]store.Result{store.Changed, store.Changed}, withOutbox(both, content(x, 1, "1")), withOutbox(both, content(y, 2, "2")))
	ids := b.wantOutboxEvents(b.claimOutboxEvents(100, 60, 10), outboxEvent(x, 1, "", "1", both), outboxEvent(y, 2, "", "2", both))
	if err := b.store.MarkChangesPublished(b.Context(), []int64{ids[1], -1}); err != nil {
		b.Fatal(err)
	}
	left := store.OutboxEvents{Triggers: both.Triggers}
	b.wantOutboxEvents(b.claimOutboxEvents(200, 60, 10), outboxEvent(x, 1, "", "1", both), outboxEvent(y, 2, "", "2", left))
}
