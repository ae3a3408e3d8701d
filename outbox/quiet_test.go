package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// quietly returns events whose trigger refreshes the general facet when no change was stored for 10
// s, or 60 s after the first change at the latest.
func quietly() store.OutboxEvents {
	return store.OutboxEvents{PublishChange: true, Triggers: []store.Trigger{{Facet: "general", Quiet: 10 * time.Second, MaxDelay: time.Minute}}}
}

func TestQuiet_CombinesChangesIntoOneRefresh(t *testing.T) {
	r := newRig(t)
	at := start
	for n := range 5 {
		at = start.Add(time.Duration(n) * 5 * time.Second)
		r.write(progress("a"), at, fmt.Sprint(n), quietly())
		if next := r.deliverAt(at); !next.Equal(at.Add(10 * time.Second)) {
			t.Errorf("change %d: next due at %v, want 10 s after it", n, next.Sub(at))
		}
		r.wantRequested()
	}
	r.published(5) // all five changes are published at once; only the trigger waits for the quiet time
	r.deliverAt(at.Add(10*time.Second - time.Microsecond))
	r.wantRequested()
	r.deliverAt(at.Add(10 * time.Second))
	r.wantRequested("general/a")
	r.wantLeft(0)
}

func TestQuiet_WaitsAtMostMaxDelay(t *testing.T) {
	r := newRig(t)
	var asked []time.Duration
	for second := range 180 {
		at := start.Add(time.Duration(second) * time.Second)
		r.write(progress("a"), at, fmt.Sprint(second), quietly())
		r.deliverAt(at)
		if len(r.enqueuer.takeRequested()) > 0 {
			asked = append(asked, at.Sub(start))
		}
	}
	if len(asked) < 2 || len(asked) > 3 || asked[0] != time.Minute {
		t.Errorf("requests in 3 min with a change each second: got %v, want one a minute", asked)
	}
}

// An event that waits for its quiet time is in the database, so a relay of another process can
// deliver it.
func TestQuiet_SurvivesTheProcess(t *testing.T) {
	r := newRig(t)
	r.write(progress("a"), start, "x", quietly())
	r.deliverAt(start)
	other := r.relay(r.db, nil)
	if _, err := other.deliverDue(t.Context(), start.Add(10*time.Second)); err != nil {
		t.Fatal(err)
	}
	r.wantRequested("general/a")
	r.wantLeft(0)
}

func TestQuiet_RetriesFailedRequest(t *testing.T) {
	r := newRig(t)
	r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool { return true }
	r.write(progress("a"), start, "x", quietly())
	r.deliverAt(start)
	at := start.Add(10 * time.Second)
	if next := r.deliverAt(at); !next.Equal(at.Add(lease)) {
		t.Errorf("next due after a rejected request: got %v, want %v", next.Sub(at), lease)
	}
	r.enqueuer.leaves = nil
	r.deliverAt(at.Add(lease))
	r.wantRequested("general/a")
	r.wantLeft(0)
}

// An event in its trigger's quiet time is not overdue, so it must not count as lag and raise an
// alert.
func TestQuiet_DoesNotCountAsLag(t *testing.T) {
	r := newRig(t)
	r.write(progress("a"), start, "x", quietly())
	r.deliverAt(start)
	if got := r.metrics.lag.age(start.Add(9 * time.Second)); got != 0 {
		t.Errorf("lag during the quiet time: got %v, want 0", got)
	}
	during := time.Duration(-1)
	r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool {
		during = r.metrics.lag.age(start.Add(16 * time.Second))
		return true
	}
	r.deliverAt(start.Add(15 * time.Second))
	if during != 6*time.Second {
		t.Errorf("lag during delivery: got %v, want 6s", during)
	}
	if got := r.metrics.lag.age(start.Add(40 * time.Second)); got != 30*time.Second {
		t.Errorf("lag after the quiet time: got %v, want 30s", got)
	}
}

func TestQuiet_SkipsWithinBackoff(t *testing.T) {
	r := newRig(t)
	events := quietly()
	events.Triggers[0].Backoff = time.Hour
	r.write(general("a"), start.Add(5*time.Second), "g", store.OutboxEvents{})
	r.write(progress("a"), start, "x", events)
	r.deliverAt(start.Add(10 * time.Second))
	r.wantRequested()
	r.wantLeft(0)
}
