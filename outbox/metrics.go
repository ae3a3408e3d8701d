package outbox

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/poll"
	"github.com/freshet/freshet/store"
)

type metrics struct {
	published, requested, skipped prometheus.Counter
	lag                           lagTracker
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	labels := prometheus.Labels{"source": source}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		published: counter("changes_published_total", "Changes published on the source's change topic."),
		requested: counter("triggers_requested_total", "Refreshes requested because another facet of the key has changed, or because new content has a link to the key."),
		skipped:   counter("triggers_skipped_total", "Triggers skipped because their facet was checked within the back-off, and links to fresh snapshots."),
	}
	// The gauge is computed at each scrape, so that it keeps rising while no event can be claimed.
	rising := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outbox_lag_seconds", Help: "Age of the oldest due event that is not delivered; 0 if there is none.", ConstLabels: labels,
	}, func() float64 { return m.lag.age(time.Now()).Seconds() })
	reg.MustRegister(m.published, m.requested, m.skipped, rising)
	return m
}

// lagTracker tracks since when the oldest undelivered event has been due. The time of the next
// possible claim does not show that: an event whose delivery failed was due earlier, but can only
// be claimed again when its lease ends.
type lagTracker struct {
	mu       sync.Mutex
	inFlight time.Time // due time of the oldest event that is being delivered
	// retrying is the due time of the oldest event whose delivery failed, and retryAt is when the
	// lease of that event ends. Only this process knows both times, because it holds the claim.
	retrying, retryAt time.Time
	next              time.Time // when the next event may be claimed
}

// claimed records the events that this process has just claimed. If retryAt has passed, it drops
// the events whose delivery failed: they are claimed again, by this process or by another one.
func (w *lagTracker) claimed(all []store.OutboxEvent, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.retryAt) {
		w.retrying = time.Time{}
	}
	w.inFlight = time.Time{}
	for _, e := range all {
		w.inFlight = poll.Earlier(w.inFlight, e.ReadyAt())
	}
}

// delivered records the end of a delivery attempt: which events are left undelivered, and that
// their lease ends at retryAt.
func (w *lagTracker) delivered(all []store.OutboxEvent, left map[int64]bool, retryAt time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight = time.Time{}
	for _, e := range all {
		if left[e.ID] && (w.retrying.IsZero() || e.ReadyAt().Before(w.retrying)) {
			w.retrying, w.retryAt = e.ReadyAt(), retryAt
		}
	}
}

// setNext records when the next event may be claimed; zero if there is none.
func (w *lagTracker) setNext(next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = next
}

// age returns how long the oldest event has been due.
func (w *lagTracker) age(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := poll.Earlier(poll.Earlier(w.inFlight, w.retrying), w.next)
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since))
}
