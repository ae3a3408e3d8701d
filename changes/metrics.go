package changes

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/store"
)

type metrics struct {
	told, triggered, rested prometheus.Counter
	waiting                 waiting
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of})
	}
	m := &metrics{
		told:      counter("changes_told_total", "Changes that were told on the source's change topic."),
		triggered: counter("triggers_asked_total", "Refreshes of a facet that were asked for because another one had changed."),
		rested:    counter("triggers_rested_total", "Triggers that were left out since the facet had been refreshed a moment before."),
	}
	// Computed as it is asked for: it goes on rising while nothing can be claimed.
	rising := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "changes_waiting_seconds", Help: "How long ago the oldest change was seen of which not all that follows has happened; 0 if there is none.", ConstLabels: of,
	}, func() float64 { return m.waiting.long(time.Now()).Seconds() })
	reg.MustRegister(m.told, m.triggered, m.rested, rising)
	return m
}

// waiting knows since when something waits to be carried out. When an effect may be
// claimed next does not say that: what could not be had is due again a lease later.
type waiting struct {
	mu    sync.Mutex
	doing time.Time // the oldest change that is being carried out
	// left is the oldest of those that could not be, which comes round then: its claim
	// is this process', so that no other tells of it.
	left, round time.Time
	next        time.Time // when an effect may be claimed
}

// claimed says what is being carried out. What was left has come round by then, and is
// in it, or in what another process has claimed.
func (w *waiting) claimed(all []store.OutboxEvent, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !now.Before(w.round) {
		w.left = time.Time{}
	}
	w.doing = time.Time{}
	for _, e := range all {
		w.doing = earlier(w.doing, e.ReadyAt())
	}
}

// ended says which of them are left, and when they come round.
func (w *waiting) ended(all []store.OutboxEvent, left map[int64]bool, round time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doing = time.Time{}
	for _, e := range all {
		if left[e.ID] && (w.left.IsZero() || e.ReadyAt().Before(w.left)) {
			w.left, w.round = e.ReadyAt(), round
		}
	}
}

// then says when an effect may be claimed next; zero if there is none.
func (w *waiting) then(next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = next
}

// long returns how long the oldest has waited.
func (w *waiting) long(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := earlier(earlier(w.doing, w.left), w.next)
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
