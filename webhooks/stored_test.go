package webhooks

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/freshet/freshet/schemas"
)

// observed returns how many times were measured, and the sum of these times.
func (r *rig) observed() (n uint64, sum float64) {
	r.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "hook_to_stored_seconds" {
			for _, m := range f.GetMetric() {
				n, sum = n+m.GetHistogram().GetSampleCount(), sum+m.GetHistogram().GetSampleSum()
			}
		}
	}
	return n, sum
}

func TestStored_MeasuresFetchesAfterTheDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		go func() { _ = r.receiver.Run(t.Context()) }()
		e := schemas.Entity{Source: "github", Facet: "items", Key: "a"}
		settle := func(number, version int64) {
			r.mu.Lock()
			r.stored["items/a"] = version
			r.mu.Unlock()
			r.receiver.Settled(schemas.Settled{Entity: e, Number: number})
			synctest.Wait()
		}
		r.stored["items/a"] = 50
		const body = `{"type":"batch","events":[{"id":"a"}]}`
		r.deliver("", body)
		r.pass(time.Second)
		settle(99, 99) // the fetch began before the delivery
		if n, _ := r.observed(); n != 0 {
			t.Fatalf("times after an earlier fetch: got %d, want 0", n)
		}
		settle(101, 99) // the request failed, so no snapshot is stored
		if n, _ := r.observed(); n != 0 {
			t.Fatalf("times after a failure: got %d, want 0", n)
		}
		r.pass(time.Second)
		settle(103, 103)
		if n, sum := r.observed(); n != 1 || sum != 2 {
			t.Errorf("times: got %d with the sum %v, want one of 2 s", n, sum)
		}
		r.outcome = func(q Request) Result { // the fetch ends before the enqueuer returns the number
			r.mu.Lock()
			r.stored["items/a"] = 201
			r.mu.Unlock()
			r.receiver.Settled(schemas.Settled{Entity: e, Number: 201})
			return Result{Queued, 200}
		}
		r.deliver("", body)
		synctest.Wait()
		if n, _ := r.observed(); n != 2 {
			t.Errorf("times after a fetch that ended early: got %d, want 2", n)
		}
		r.outcome = func(Request) Result { return Result{Outcome: Queued} } // a retry covers the request, and has no number yet
		r.deliver("", body)
		settle(202, 202)
		if n, _ := r.observed(); n != 2 {
			t.Errorf("times after a fetch that began before the delivery: got %d, want 2", n)
		}
		settle(r.now.UnixMilli()+1, r.now.UnixMilli()+1)
		if n, _ := r.observed(); n != 3 {
			t.Errorf("times after the retry: got %d, want 3", n)
		}
		r.outcome = func(Request) Result { return Result{} }
		r.deliver("", body)
		if got := r.receiver.watch.count; got != 0 {
			t.Errorf("watched deliveries: got %d, want 0", got)
		}
	})
}

func TestStored_ForgetsOldDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		go func() { _ = r.receiver.Run(t.Context()) }()
		r.stored["items/a"] = 1
		for range maxWatched + 10 {
			r.deliver("", `{"type":"batch","events":[{"id":"a"}]}`)
		}
		if got := r.receiver.watch.count; got != maxWatched {
			t.Errorf("watched deliveries: got %d, want %d", got, maxWatched)
		}
		r.pass(watchTTL + time.Second)
		time.Sleep(sweepInterval)
		synctest.Wait()
		if got := r.receiver.watch.count; got != 0 || len(r.receiver.watch.byEntity) != 0 {
			t.Errorf("watched deliveries after %v: got %d, want 0", watchTTL, got)
		}
		if got := testutil.ToFloat64(r.receiver.metrics.deliveries.WithLabelValues("github", "hook", string(accepted))); got != maxWatched+10 {
			t.Errorf("accepted deliveries: got %v, want %d", got, maxWatched+10)
		}
	})
}
