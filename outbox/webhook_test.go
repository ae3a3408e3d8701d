package outbox

import (
	"testing"
	"time"

	"github.com/freshet/freshet/schemas"
	"github.com/freshet/freshet/store"
	"github.com/freshet/freshet/store/prefetched"
)

// hooked returns a write with the outbox event of a delivery: a trigger that refreshes the entity
// itself after a delay of 5 s.
func hooked(key string, at time.Time, lane schemas.Lane) store.Write {
	e := progress(key)
	return store.Write{Entity: e, CheckedAt: at, Outbox: store.OutboxEvents{Triggers: []store.Trigger{
		{Facet: e.Facet, Quiet: 5 * time.Second, MaxDelay: 50 * time.Second, Lane: lane},
	}}}
}

func (r *rig) deliverHook(key string, at time.Time, lane schemas.Lane) {
	r.Helper()
	if err := r.db.WriteOutbox(r.Context(), []store.Write{hooked(key, at, lane)}); err != nil {
		r.Fatal(err)
	}
}

// 10,000 deliveries for one entity within a minute cause two requests: one after 50 s (MaxDelay), and
// one 5 s after the last delivery. A delivery that arrives while the relay enqueues a request must not
// cause a further request.
func TestWebhook_ManyDeliveriesCauseTwoRequests(t *testing.T) {
	r := newRig(t)
	const deliveries = 10_000
	at, requests := start, []time.Duration{}
	r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool {
		requests = append(requests, at.Sub(start))
		for range 3 {
			r.deliverHook("a", at, "")
		}
		return false
	}
	for n := range deliveries {
		at = start.Add(time.Minute * time.Duration(n) / deliveries)
		r.deliverHook("a", at, "")
		if next, err := r.db.NextOutboxTime(t.Context(), "court"); err != nil {
			t.Fatal(err)
		} else if !next.After(at) {
			r.deliverAt(at)
		}
	}
	for range 3 { // deliveries that arrive while the relay enqueues a request are requested later
		r.enqueuer.leaves = func(prefetched.ClaimedRequest) bool { requests = append(requests, at.Sub(start)); return false }
		if next, err := r.db.NextOutboxTime(t.Context(), "court"); err != nil {
			t.Fatal(err)
		} else if !next.IsZero() {
			at = next
			r.deliverAt(at)
		}
	}
	if len(requests) != 2 || requests[0] < 49*time.Second || requests[0] > 51*time.Second || requests[1] < 64*time.Second || requests[1] > 66*time.Second {
		t.Errorf("requests: got %v, want two, after about 50 s and 65 s", requests)
	}
	r.wantLeft(0)
}

// The request of a webhook must have the lane of the webhook. It must be enqueued even if the entity's
// last check seems to be in the future, because the clock of that worker is ahead.
func TestWebhook_RequestsInItsLane(t *testing.T) {
	r := newRig(t)
	r.write(progress("a"), start.Add(time.Minute), "x", store.OutboxEvents{})
	r.deliverHook("a", start, schemas.High)
	r.deliverHook("b", start, "")
	r.deliverAt(start.Add(5 * time.Second))
	lanes := map[string]schemas.Lane{}
	for _, q := range r.enqueuer.requests {
		lanes[q.Entity.Key] = q.Lane
	}
	if len(lanes) != 2 || lanes["a"] != schemas.High || lanes["b"] != "" {
		t.Errorf("lanes: got %v, want HIGH for a, and none for b", lanes)
	}
}
