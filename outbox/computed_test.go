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

// feeding returns events that cause a computation of a key of the derived facet stats.
func feeding(key string) store.OutboxEvents {
	return store.OutboxEvents{Triggers: []store.Trigger{{Facet: "stats", Key: key, Every: time.Minute}}}
}

func stats(key string) schemas.Entity {
	return schemas.Entity{Source: "court", Facet: "stats", Key: key}
}

// Changes of many inputs cause one computation, which is due a fixed time after the first change. A hundred changes
// within three minutes cause three.
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

// A check of the target a moment ago does not skip the request: the target was computed without the change.
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

// An event stays until the refresh that it delays is stored.
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

// unwritable is a store that stores no events.
type unwritable struct{ Store }

func (unwritable) WriteOutbox(context.Context, []store.Write) error { return errors.New("injected") }
