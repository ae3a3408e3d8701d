package outbox

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// linking returns events with one link to each key of the facet "general". All links have this depth. A
// target that was checked less than an hour ago is fresh.
func linking(depth int, keys ...string) (e store.OutboxEvents) {
	for _, key := range keys {
		e.Triggers = append(e.Triggers, store.Trigger{Facet: "general", Key: key, Depth: depth, Backoff: time.Hour})
	}
	return e
}

func TestLink_RequestsOtherKeysWithDepth(t *testing.T) {
	r := newRig(t)
	r.write(general("stale"), start.Add(-time.Hour), "x", store.OutboxEvents{})
	r.write(progress("a"), start, "x", linking(2, "b", "stale"))
	r.deliverAt(start)
	want := []prefetched.ClaimedRequest{{Entity: general("b"), Depth: 2}, {Entity: general("stale"), Depth: 2, Version: start.Add(-time.Hour).UnixMicro()}}
	if !reflect.DeepEqual(r.enqueuer.requests, want) {
		t.Errorf("requested: got %+v, want %+v", r.enqueuer.requests, want)
	}
	r.wantLeft(0)
}

func TestLink_SkipsFreshTargets(t *testing.T) {
	r := newRig(t)
	r.write(general("fresh"), start.Add(-time.Minute), "x", store.OutboxEvents{})
	notFound := store.Write{Entity: general("notfound"), Kind: store.KindNotFound, Version: 1, CheckedAt: start.Add(-time.Minute)}
	if _, err := r.db.Write(t.Context(), []store.Write{notFound}); err != nil {
		t.Fatal(err)
	}
	r.write(progress("a"), start, "x", linking(1, "fresh", "notfound", "unknown"))
	r.deliverAt(start)
	r.wantRequested("general/notfound", "general/unknown") // the key notfound has a hold, but only the enqueuer knows this, so the relay requests it
	r.wantLeft(0)
}

// If many documents link to one key, the key is requested once. The depth of the request is the lowest
// depth of these links, so its own links can be followed as far as possible.
func TestLink_CombinesLinksToOneKey(t *testing.T) {
	r := newRig(t)
	for n := range 5 {
		r.write(progress(fmt.Sprint(n)), start, "x", linking(5-n, "shared", fmt.Sprint("own", n)))
	}
	r.deliverAt(start)
	depths := map[string]int{}
	for _, request := range r.enqueuer.requests {
		if _, twice := depths[request.Entity.Key]; twice {
			t.Errorf("%s was requested twice, want once", request.Entity)
		}
		depths[request.Entity.Key] = request.Depth
	}
	if want := map[string]int{"shared": 1, "own0": 5, "own1": 4, "own2": 3, "own3": 2, "own4": 1}; !reflect.DeepEqual(depths, want) {
		t.Errorf("depths: got %v, want %v", depths, want)
	}
	r.wantLeft(0)
}

// An entity is the target of a link and of a trigger at the same time. The relay must enqueue the
// trigger's request: it is strict, has no depth, and has the params of the change.
func TestLink_BesideTriggerIsStrict(t *testing.T) {
	params := map[string]string{"encCsNo": "n"}
	for _, linkFirst := range []bool{true, false} {
		r := newRig(t)
		at, other := start, start.Add(time.Second)
		if !linkFirst {
			at, other = other, at
		}
		r.write(progress("a"), at, "x", linking(1, "b"))
		r.write(progress("b"), other, "x", triggering(0, params))
		r.deliverAt(start.Add(time.Minute))
		if want := []prefetched.ClaimedRequest{{Entity: general("b"), Params: params}}; !reflect.DeepEqual(r.enqueuer.requests, want) {
			t.Errorf("link first %v: got %+v, want %+v", linkFirst, r.enqueuer.requests, want)
		}
	}
}

// A relay crashes before it has requested the target of a link. Another relay must request it after the
// lease.
func TestLink_SurvivesACrash(t *testing.T) {
	r := newRig(t)
	r.write(progress("a"), start, "x", linking(1, "b"))
	if _, err := r.db.ClaimOutboxEvents(t.Context(), "court", start, lease, 10); err != nil {
		t.Fatal(err)
	}
	r.deliverAt(start.Add(lease - time.Microsecond))
	r.wantRequested()
	if _, err := r.relay(r.db, nil).deliverDue(t.Context(), start.Add(lease)); err != nil {
		t.Fatal(err)
	}
	r.wantRequested("general/b")
	r.wantLeft(0)
}

// A batch of events can have more links than the producer accepts at once. Each target must be
// requested in the end.
func TestLink_ManyTargetsAreAllRequested(t *testing.T) {
	r := newRig(t)
	accepted := 0
	r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool { accepted++; return accepted > 700 }
	var want []schemas.Entity
	for n := range 4 {
		var keys []string
		for k := range 500 {
			keys = append(keys, fmt.Sprintf("%d-%d", n, k))
			want = append(want, general(keys[k]))
		}
		r.write(progress(fmt.Sprint(n)), start, "x", linking(1, keys...))
	}
	requested := map[schemas.Entity]bool{}
	for round := range 10 {
		accepted = 0
		r.deliverAt(start.Add(time.Duration(round) * lease))
		for _, request := range r.enqueuer.requests {
			requested[request.Entity] = true
			// the target is fetched before the next round, so it is fresh then
			r.write(request.Entity, start.Add(time.Duration(round)*lease), fmt.Sprint(round), store.OutboxEvents{})
		}
		r.enqueuer.requests = nil
	}
	for _, e := range want {
		if !requested[e] {
			t.Fatalf("%s was not requested; %d of %d were", e, len(requested), len(want))
		}
	}
	r.wantLeft(0)
}
