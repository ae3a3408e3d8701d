package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
)

// feeding returns events that request the computation of the entity of the derived facet stats with
// this key.
func feeding(key string) store.OutboxEvents {
	return store.OutboxEvents{Triggers: []store.Trigger{{Facet: "stats", Key: key, Every: time.Minute}}}
}

func stats(key string) schemas.Entity {
	return schemas.Entity{Source: "court", Facet: "stats", Key: key}
}

// Changes of many inputs cause one computation. It is due at a fixed time after the first change. A
// hundred changes within three minutes cause three computations.
func TestComputed_ManyInputsCauseOneRequest(t *testing.T) {
	r := newRig(t)
	var requested []time.Duration
	at := start
	deliver := func() {
		r.deliverAt(at)
		for _, q := range r.enqueuer.takeRequested() {
			if q == "stats/owner" {
				requested = append(requested, at.Sub(start))
			}
		}
	}
	for n := range 100 {
		at = start.Add(time.Duration(n) * 1800 * time.Millisecond)
		r.write(progress(fmt.Sprint("owner-", n)), at, fmt.Sprint(n), feeding("owner"))
		deliver()
	}
	if next, err := r.db.NextOutboxTime(t.Context(), "court"); err != nil || next.IsZero() {
		t.Fatalf("next event: got %v, %v, want the one of the last changes", next, err)
	} else {
		at = next
		deliver()
	}
	if len(requested) != 3 || requested[0] < time.Minute || requested[0] > 62*time.Second {
		t.Errorf("requests: got %v, want three, the first a minute after the first change", requested)
	}
	r.wantLeft(0)
}

// The target was computed a moment ago, but without the change. So the request must not be skipped.
func TestComputed_RequestIsNeverSkipped(t *testing.T) {
	r := newRig(t)
	r.write(progress("a"), start, "x", feeding("owner"))
	r.deliverAt(start)
	r.wantRequested()
	r.write(stats("owner"), start.Add(59*time.Second), "y", store.OutboxEvents{})
	r.deliverAt(start.Add(time.Minute))
	r.wantRequested("stats/owner")
	r.wantLeft(0)
}

// If the relay can't store the event for the later computation, it must keep the event of the change.
func TestComputed_FailedStoreKeepsTheEvent(t *testing.T) {
	r := newRig(t)
	r.Relay.store = unwritable{r.db}
	r.write(progress("a"), start, "x", feeding("owner"))
	r.deliverAt(start)
	r.Relay.store = r.db
	r.deliverAt(start.Add(2 * lease))
	r.deliverAt(start.Add(2*lease + time.Minute))
	r.wantRequested("stats/owner")
	r.wantLeft(0)
}

// unwritable is a store that fails to store events.
type unwritable struct{ Store }

func (unwritable) WriteOutbox(context.Context, []store.Write) error { return errors.New("injected") }
