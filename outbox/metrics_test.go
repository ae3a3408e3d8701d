package outbox

import (
	"testing"
	"time"

	"github.com/freshet/freshet/store"
)

func TestLagTracker_KnowsFailedEvents(t *testing.T) {
	var w lagTracker
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	after := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	is := func(what string, at time.Time, want int) {
		t.Helper()
		if got := w.age(at); got != time.Duration(want)*time.Second {
			t.Errorf("%s: got age %v, want %d s", what, got, want)
		}
	}
	// deliver claims the events at second `at` for 60 s, and delivers all of them except the events with the
	// IDs in left.
	deliver := func(at int, all []store.OutboxEvent, left ...int64) {
		w.claimed(all, after(at))
		undone := map[int64]bool{}
		for _, id := range left {
			undone[id] = true
		}
		w.delivered(all, undone, after(at+60))
	}
	old, young := store.OutboxEvent{ID: 1, At: start}, store.OutboxEvent{ID: 2, At: after(30)}
	is("nothing", after(0), 0)

	w.claimed([]store.OutboxEvent{young, old}, after(31))
	is("in flight", after(35), 35)
	deliver(0, []store.OutboxEvent{old}, 1)
	w.setNext(after(60)) // the event can be claimed again after 60 s, but its age counts from its due time
	is("left", after(20), 20)
	deliver(30, []store.OutboxEvent{young}) // at second 30 only the young event is delivered; the lease of the undelivered old event lasts until second 60
	is("another one is ended", after(40), 40)
	w.claimed([]store.OutboxEvent{old, young}, after(60))
	w.delivered([]store.OutboxEvent{old, young}, map[int64]bool{2: true}, after(120))
	is("the older is ended", after(70), 40)

	w.claimed(nil, after(120)) // nothing is claimed here, because another process has claimed the young event
	w.setNext(time.Time{})
	is("all is ended", after(121), 0)
	w.setNext(after(130))
	is("nothing can be claimed", after(140), 10)
}
