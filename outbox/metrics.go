package outbox

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store"
)

type metrics struct {
	published, requested, skipped prometheus.Counter
	lag                           lagTracker
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of})
	}
	m := &metrics{
		published: counter("changes_published_total", "Changes that were told on the source's change topic."),
		requested: counter("triggers_requested_total", "Refreshes of a facet that were asked for because another one had changed."),
		skipped:   counter("triggers_skipped_total", "Triggers that were left out since the facet had been refreshed a moment before."),
	}
	// Computed as it is asked for: it goes on rising while nothing can be claimed.
	rising := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outbox_lag_seconds", Help: "How long ago the oldest change was seen of which not all that follows has happened; 0 if there is none.", ConstLabels: of,
	}, func() float64 { return m.lag.age(time.Now()).Seconds() })
	reg.MustRegister(m.published, m.requested, m.skipped, rising)
	return m
}

// lagTracker knows since when something waits to be carried out. When an effect may be
// claimed next does not say that: what could not be had is due again a lease later.
type lagTracker struct {
	mu       sync.Mutex
	inFlight time.Time // the oldest change that is being carried out
	// retrying is the oldest of those that could not be, which comes round then: its claim
	// is this process', so that no other tells of it.
	retrying, retryAt time.Time
	next              time.Time // when an effect may be claimed
}

// claimed says what is being carried out. What was left has come round by then, and is
// in it, or in what another process has claimed.
func (w *lagTracker) claimed(all []store.OutboxEvent, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.retryAt) {
		w.retrying = time.Time{}
	}
	w.inFlight = time.Time{}
	for _, e := range all {
		w.inFlight = earlier(w.inFlight, e.ReadyAt())
	}
}

// delivered says which of them are left, and when they come round.
func (w *lagTracker) delivered(all []store.OutboxEvent, left map[int64]bool, round time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inFlight = time.Time{}
	for _, e := range all {
		if left[e.ID] && (w.retrying.IsZero() || e.ReadyAt().Before(w.retrying)) {
			w.retrying, w.retryAt = e.ReadyAt(), round
		}
	}
}

// setNext says when an effect may be claimed next; zero if there is none.
func (w *lagTracker) setNext(next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = next
}

// age returns how long the oldest has waited.
func (w *lagTracker) age(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := earlier(earlier(w.inFlight, w.retrying), w.next)
	if since.IsZero() {
		return 0
	}
	return max(0, now.Sub(since))
}

// earlier returns the earlier of two times; one that is zero is none.
func earlier(a, b time.Time) time.Time {
	if b.IsZero() || (!a.IsZero() && a.Before(b)) {
		return a
	}
	return b
}
