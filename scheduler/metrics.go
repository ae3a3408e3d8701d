package scheduler

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/freshet/freshet/observe"
)

type metrics struct {
	requested, takenOver, broughtForward prometheus.Counter
	skipped                              *prometheus.CounterVec
	delay                                prometheus.Histogram
	rate, price                          prometheus.Gauge
	firstDue                             atomic.Int64 // when the entity is due that is due first, in nanoseconds; 0: nothing is to be asked for
}

func newMetrics(source string, reg prometheus.Registerer) *metrics {
	of := prometheus.Labels{"source": source}
	late := observe.Histogram("prefetch_delay_seconds", "How long after its due time an entity was claimed.", 1, 10, 60, 300, 1800, 7200, 43200)
	late.ConstLabels = of
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Name: name, Help: help, ConstLabels: of}
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: of}
	}
	m := &metrics{
		requested:      prometheus.NewCounter(counter("prefetch_requested_total", "Entities that were asked for as they came due.")),
		takenOver:      prometheus.NewCounter(counter("prefetch_taken_over_total", "Entities that another scheduler had claimed and not asked for in time, and that were asked for in its place.")),
		broughtForward: prometheus.NewCounter(counter("prefetch_brought_forward_total", "Entities of the adaptive mode that became due earlier, as the budget was idle.")),
		skipped:        prometheus.NewCounterVec(counter("prefetch_skipped_total", "Entities that were due and not asked for, by why."), []string{"reason"}),
		delay:          prometheus.NewHistogram(late),
		rate:           prometheus.NewGauge(gauge("prefetch_rate", "Calls a second that this scheduler may feed now.")),
		price:          prometheus.NewGauge(gauge("prefetch_price", "What a call must be worth in the adaptive mode, in reads that it keeps from seeing the past.")),
	}
	for _, why := range []string{skipFresh, skipHeld, skipInactive, skipNotReady, skipOff} {
		m.skipped.WithLabelValues(why)
	}
	m.setFirstDue(time.Now()) // until it has looked it may be late since it began
	// Computed as it is asked for: it goes on rising while nobody can look.
	rising := prometheus.NewGaugeFunc(gauge("prefetch_lag_seconds", "How long ago the entity was due that is due first; 0 while nothing is to be asked for."),
		func() float64 { return m.lag(time.Now()).Seconds() })
	reg.MustRegister(m.requested, m.takenOver, m.broughtForward, m.skipped, m.delay, m.rate, m.price, rising)
	return m
}

// setFirstDue says when the entity is due that is due first; zero if nothing is to be asked for.
func (m *metrics) setFirstDue(at time.Time) {
	if at.IsZero() {
		m.firstDue.Store(0)
		return
	}
	m.firstDue.Store(at.UnixNano())
}

func (m *metrics) lag(now time.Time) time.Duration {
	if first := m.firstDue.Load(); first != 0 {
		return max(0, now.Sub(time.Unix(0, first)))
	}
	return 0
}
