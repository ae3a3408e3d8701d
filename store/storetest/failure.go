package storetest

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/deadletters"
)

// failing returns the status RETRYING of version n. Its retry is due at the time n.
func failing(e schemas.Entity, n int64) store.Status {
	return store.Status{
		Entity: e, State: store.Retrying, Reason: "UPSTREAM_5XX", Error: fmt.Sprint("error ", n), Rounds: int(n), Failures: 2,
		Version: n, Until: at(n), Lane: schemas.Low, Params: map[string]string{"n": fmt.Sprint(n)},
		CorrelationID: fmt.Sprint("c", n), TraceParent: fmt.Sprint("00-", n), Replay: schemas.ReplayMark{ID: fmt.Sprint("r", n), Count: int(n % 3)}, Depth: int(n % 4), Since: at(n), UpdatedAt: at(n),
	}
}

func (b suite) fail(statuses ...store.Status) {
	b.Helper()
	for _, s := range statuses {
		if err := b.store.WriteFailure(b.Context(), s, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func (b suite) status(e schemas.Entity) store.Status {
	b.Helper()
	all, err := b.store.Statuses(b.Context(), []schemas.Entity{e})
	if err != nil || len(all) != 1 {
		b.Fatal(all, err)
	}
	return all[0]
}

// hasStatus fails the test unless exactly these statuses are stored for their entities.
func (b suite) hasStatus(want ...store.Status) {
	b.Helper()
	var of []schemas.Entity
	for _, s := range want {
		of = append(of, s.Entity)
	}
	got, err := b.store.Statuses(b.Context(), of)
	if err != nil || !reflect.DeepEqual(got, want) {
		b.Fatalf("statuses: got\n%+v, %v, want\n%+v", got, err, want)
	}
}

func (b suite) hasNoStatus(e schemas.Entity) {
	b.Helper()
	b.hasStatus(store.Status{Entity: e})
}

func (b suite) claimRetries(source string, now, lease int64, limit int) []store.Status {
	b.Helper()
	due, err := b.store.ClaimRetries(b.Context(), source, at(now), time.Duration(lease)*time.Second, limit)
	if err != nil {
		b.Fatal(err)
	}
	return due
}

func key(k string) schemas.Entity {
	return schemas.Entity{Source: entity.Source, Facet: entity.Facet, Key: k}
}

func testStatus(b suite) {
	b.hasNoStatus(entity)
	if all, err := b.store.Statuses(b.Context(), nil); err != nil || len(all) != 0 {
		b.Errorf("Statuses of nothing: %+v, %v", all, err)
	}
	first := failing(entity, 5)
	b.fail(first, first) // writing the same status twice has no further effect
	b.hasStatus(first)

	later := failing(entity, 6)
	later.State, later.Until, later.Params, later.Lane = store.Suspended, time.Time{}, nil, schemas.High
	b.fail(later)
	later.Since = first.Since
	b.hasStatus(later)

	b.fail(failing(entity, 5))
	b.hasStatus(later)
	again := failing(entity, 6) // a second status of the same fetch, which replaces the first
	again.State = store.Failed
	b.fail(again)
	again.Since = first.Since
	b.hasStatus(again)

	other := failing(schemas.Entity{Source: "nexo", Facet: entity.Facet, Key: entity.Key}, 3)
	b.fail(other)
	b.hasStatus(store.Status{Entity: key("b")}, other, again, store.Status{Entity: key("A")})
}

func testSuccessEndsFailure(b suite) {
	b.fail(failing(entity, 4))
	b.write(one(store.BaseMissing), notModified(entity, 5, "x"))
	b.hasStatus(failing(entity, 4))
	for n := int64(5); n < 30; n += 10 {
		for _, step := range []struct {
			result store.Result
			write  store.Write
		}{
			{store.Changed, content(entity, n, fmt.Sprint(n))},
			{store.Touched, content(entity, n+2, fmt.Sprint(n))},
			{store.Touched, notModified(entity, n+4, fmt.Sprint(n))},
			{store.NotFoundStored, notFound(entity, n+6)},
		} {
			v := step.write.Version
			bystander := failing(key("other"), v)
			bystander.Since = at(5)
			b.fail(failing(entity, v-1), bystander)
			b.write(one(step.result), step.write)
			b.hasNoStatus(entity)
			b.hasStatus(bystander)
			// Failures of the stored version v, and of an earlier version, are ignored.
			b.fail(failing(entity, v), failing(entity, v-1))
			b.hasNoStatus(entity)
		}
	}
	rewritten := content(entity, 40, "y")
	rewritten.ExtractVersion = 8
	b.fail(failing(entity, 40))
	b.write(one(store.Rewritten), rewritten)
	b.hasNoStatus(entity)
}

func testFailureSurvivesOtherWrites(b suite) {
	b.write(one(store.Changed), content(entity, 5, "x"))
	b.fail(failing(entity, 9))
	// The write of a fetch that is earlier than the failed fetch does not delete the status,
	// whichever Result the write has.
	b.write(one(store.Changed), content(entity, 7, "y"))
	b.write(one(store.Touched), content(entity, 8, "y"))
	b.write(one(store.Superseded), content(entity, 6, "z"))
	b.write(one(store.Superseded), notFound(entity, 7))
	b.write(one(store.BaseMissing), notModified(entity, 9, "z"))
	b.write([]store.Result{store.Superseded, store.NotFoundStored}, content(entity, 1, "x"), notFound(entity, 8))
	b.hasStatus(failing(entity, 9))
	failed := content(entity, 10, "x")
	failed.Payload = func() (store.Payload, error) { return store.Payload{}, fmt.Errorf("no memory") }
	if _, err := b.store.Write(b.Context(), []store.Write{failed, content(key("b"), 1, "x")}); err == nil {
		b.Fatal("the batch was written")
	}
	b.hasStatus(failing(entity, 9))
	b.write([]store.Result{store.Changed, store.Superseded}, content(entity, 10, "x"), content(entity, 9, "y"))
	b.hasNoStatus(entity)
	if s := b.get(entity); s.Version != 10 {
		b.Errorf("state: got %+v", s.State)
	}
}

// testFailureRace writes a failure and a success of one entity concurrently, with and without a
// stored state: the result of the later fetch must remain.
func testFailureRace(b suite) {
	const rounds = 60
	for n := range rounds {
		e := key(fmt.Sprint(n / 2))
		failed := int64(1 + 10*n)
		stored := failed + int64(n/4%2)*2 - 1 // version of the successful fetch: lower or higher by one than the version of the failed fetch
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := b.store.WriteFailure(b.Context(), failing(e, failed), nil); err != nil {
				b.Error(err)
			}
		})
		wg.Go(func() {
			if results, err := b.store.Write(b.Context(), []store.Write{content(e, stored, "x"), content(key("z"+e.Key), stored, "x")}); err != nil || !results[0].Stored() {
				b.Error(results, err)
			}
		})
		wg.Wait()
		if s := b.status(e); (s.State != "") != (failed > stored) {
			b.Errorf("failure %d, success %d: got status %+v", failed, stored, s)
		}
		if v := b.get(e).Version; v != stored {
			b.Errorf("version: got %d, want %d", v, stored)
		}
	}
}

// testFailureAlone: a failure writes only the status, and neither creates nor changes a snapshot.
func testFailureAlone(b suite) {
	b.fail(failing(entity, 5))
	testUnknown(b)
	b.write(one(store.Changed), content(entity, 4, "x"))
	b.fail(failing(entity, 6))
	b.wantSnapshot(entity, "x", 4, 4, 4, 4)
	if err := b.store.Delete(b.Context(), entity); err != nil {
		b.Fatal(err)
	}
	b.hasNoStatus(entity)
	b.fail(failing(entity, 1))
	b.hasStatus(failing(entity, 1))
	if err := b.store.Delete(b.Context(), entity); err != nil { // the entity has a status but no snapshot
		b.Fatal(err)
	}
	b.hasNoStatus(entity)
}

func testHostileFailure(b suite) {
	s := failing(key("'; DROP TABLE update_status; --\u1100\"\\"), 1)
	s.Error = "a\x00b\xff\xfec" + strings.Repeat("가", 2000)
	s.Reason, s.CorrelationID, s.TraceParent = "\x00", "\xc3(\x00", strings.Repeat("é", 3000)
	s.Params = map[string]string{"\x00": "'\x00\"\\", "": "", "<가>": "\u2028&"}
	l := newDeadLetter(s.Entity, 1)
	l.CorrelationID, l.Error = "\x00\xff", strings.Repeat("é", deadletters.MaxIndexedErrorBytes)
	if err := b.store.WriteFailure(b.Context(), s, &l); err != nil {
		b.Fatal(err)
	}
	got := b.status(s.Entity)
	const prefix = "a\uFFFDb\uFFFDc"
	if fill := (store.MaxTextBytes - len(prefix)) / 3; got.Error != prefix+strings.Repeat("가", fill) {
		b.Errorf("error text: got %d bytes, %.30q", len(got.Error), got.Error)
	}
	if got.Reason != "\uFFFD" || got.CorrelationID != "\uFFFD(\uFFFD" || len(got.TraceParent) != store.MaxTextBytes || !maps.Equal(got.Params, s.Params) {
		b.Errorf("status: got %+v", got)
	}
	if all := b.deadLetters(entity.Source, true, 9); len(all) != 1 || all[0].CorrelationID != "\uFFFD\uFFFD" || all[0].Entity != s.Entity {
		b.Errorf("dead letters: got %+v", all)
	}
	b.handle(deadletters.Disposition{Outcome: deadletters.Replayed, By: "me\x00", At: at(1)}, l.ID)
	b.write(one(store.Changed), content(s.Entity, 1, "x"))
	b.hasNoStatus(s.Entity)
}

func testClaimRetries(b suite) {
	next := func(want time.Time) {
		b.Helper()
		if got, err := b.store.NextRetryTime(b.Context(), entity.Source); err != nil || !got.Equal(want) {
			b.Fatalf("NextRetryTime: got %v, %v, want %v", got, err, want)
		}
	}
	claimed := func(s store.Status, until int64) store.Status { s.Until = at(until); return s }
	is := func(got []store.Status, want ...store.Status) {
		b.Helper()
		if len(got) != len(want) || (len(want) > 0 && !reflect.DeepEqual(got, want)) {
			b.Fatalf("due retries: got\n%+v, want\n%+v", got, want)
		}
	}
	next(time.Time{})
	is(b.claimRetries(entity.Source, 100, 10, 10))

	x, y, z := failing(key("z"), 10), failing(key("y"), 20), failing(key("x"), 30)
	held, suspended := failing(key("held"), 1), failing(key("suspended"), 2)
	held.State, suspended.State, suspended.Until = store.Failed, store.Suspended, time.Time{}
	b.fail(z, x, y, held, suspended, failing(schemas.Entity{Source: "nexo", Facet: "f", Key: "a"}, 5))
	next(at(10))
	is(b.claimRetries(entity.Source, 9, 10, 10))
	is(b.claimRetries(entity.Source, 20, 100, 10), claimed(x, 120), claimed(y, 120))
	b.hasStatus(claimed(x, 120), z, claimed(y, 120), held, suspended)
	next(at(30))
	is(b.claimRetries(entity.Source, 29, 100, 10))
	is(b.claimRetries(entity.Source, 1000, 100, 1), claimed(z, 1100))
	next(at(120))
	b.write(one(store.Changed), content(y.Entity, 20, "x"))
	is(b.claimRetries(entity.Source, 120, 100, 10), claimed(x, 220)) // x is due again after its lease
	next(at(220))
	again := failing(x.Entity, 11)
	again.Until = at(50) // the retry has failed; this is the due time of the next retry
	b.fail(again)
	next(at(50))
	again.Since = x.Since
	is(b.claimRetries(entity.Source, 50, 1, 10), claimed(again, 51))
}

// testClaimRetriesRace claims retries concurrently. Each retry must go to only one call.
func testClaimRetriesRace(b suite) {
	const claimants, rows = 6, 120
	for n := range int64(rows) {
		b.fail(failing(key(fmt.Sprint(n)), n+1))
	}
	var mu sync.Mutex
	claims := map[schemas.Entity]int{}
	var wg sync.WaitGroup
	for range claimants {
		wg.Go(func() {
			for {
				due, err := b.store.ClaimRetries(b.Context(), entity.Source, at(rows), time.Hour, 7)
				if err != nil {
					b.Error(err)
				}
				if len(due) == 0 {
					return
				}
				mu.Lock()
				for _, s := range due {
					claims[s.Entity]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// Claim the retries that the calls above skipped, because another call had locked them.
	for _, s := range b.claimRetries(entity.Source, rows, 3600, rows) {
		claims[s.Entity]++
	}
	for e, n := range claims {
		if n != 1 {
			b.Errorf("%s: claimed %d times, want once", e, n)
		}
	}
	if len(claims) != rows {
		b.Errorf("retries claimed: got %d, want %d", len(claims), rows)
	}
}
